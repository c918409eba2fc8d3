"""Where a deciding service keeps its snapshots: the object store, below `snapshots/`.

`snapshots/<prefix + service>/<shard>/<seq>.snapshot`, put whole or not at all; the newest three
stay. What is beyond the one that is put goes too: who writes has read its whole log, so that is of
a log that is no more (Kafka was set up anew), and would be the newest for ever.
A store that is away is not waited for long: the log holds everything, and a takeover is urgent.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import TypeVar

from gangline_bus.snapshot import SnapshotCodec, Snapshots, code_hash
from gangline_storage import ObjectStore, open_store
from gangline_storage.retry import Retry
from gangline_storage.s3_options import S3Options

from .settings import DecidingSettings

StateT = TypeVar("StateT")
KEPT = 3
_IMPATIENT = S3Options(connect_timeout_s=1.0, read_timeout_s=5.0, retry=Retry(attempts=2))


class StoredSnapshots:
    """Implements `SnapshotStore` over an object store."""

    def __init__(self, store: ObjectStore, *, prefix: str = "") -> None:
        self._store = store
        self._prefix = prefix

    def newest(self, service: str, shard: int) -> Iterator[bytes]:
        """The kept snapshots, newest first, each read when it is asked for."""
        for key in reversed(self._keys(service, shard)):
            yield self._store.get(key)

    def put(self, service: str, shard: int, next_seq: int, data: bytes) -> None:
        """Keep one, then remove the oldest ones, and those of another log."""
        own = f"{self._folder(service, shard)}{next_seq:020d}.snapshot"
        self._store.put(own, data)
        keys = self._keys(service, shard)
        stay = [key for key in keys if key <= own][-KEPT:]
        for key in set(keys).difference(stay):
            self._store.delete(key)

    def _keys(self, service: str, shard: int) -> list[str]:
        return [info.key for info in self._store.list(self._folder(service, shard))]

    def _folder(self, service: str, shard: int) -> str:
        return f"snapshots/{self._prefix}{service}/{shard}/"


def stored_snapshots(url: str, *, prefix: str = "") -> StoredSnapshots:
    """Those of a store. Raises StoreError for a URL that names none."""
    return StoredSnapshots(open_store(url, options=_IMPATIENT), prefix=prefix)


def open_snapshots(
    service: str, settings: DecidingSettings, codec: SnapshotCodec[StateT], package: str
) -> Callable[[], Snapshots[StateT] | None]:
    """What makes the snapshots of one shard; it gives None when no store is configured.

    `package` is the service's: a snapshot of other code of it, of the bus or of the schemas is
    passed over. Raises StoreError for a URL that names no store.
    """
    if settings.store_url is None:
        return lambda: None
    kept = stored_snapshots(settings.store_url, prefix=settings.topic_prefix)
    code = code_hash(package, "gangline_schemas", "gangline_bus")

    def run(work: Callable[[], None]) -> None:
        # A daemon: a stop never waits for a snapshot.
        threading.Thread(target=work, name=f"snapshot-{service}", daemon=True).start()

    return lambda: Snapshots(kept, codec, code=code, every=settings.snapshot_every, run=run)
