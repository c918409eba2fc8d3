"""The place of a service's snapshots: the object store, below `snapshots/`.

`snapshots/<prefix + service>/<shard>/<seq>.<state format>.snapshot`, put whole or not at all. The
newest three of a format stay. The newest one of each other format stays too: the earlier version
may have to take over from it. Snapshots with a higher number than the new one are deleted. The
writer has read its whole log, so they belong to a log that no longer exists (Kafka was set up
again), and they would be the newest for ever. A store that is away is not waited for long: the log
holds everything, and a takeover is urgent.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import TypeVar

from gangline_bus.snapshot import SnapshotCodec, SnapshotHeader, Snapshots
from gangline_storage import ObjectStore, open_store
from gangline_storage.retry import Retry
from gangline_storage.s3_options import S3Options

from .settings import DecidingSettings

StateT = TypeVar("StateT")
Wrote = Callable[[SnapshotHeader], None]
KEPT = 3
_IMPATIENT = S3Options(connect_timeout_s=1.0, read_timeout_s=5.0, retry=Retry(attempts=2))


def ignored(_: SnapshotHeader) -> None:
    """Notes nothing."""


class StoredSnapshots:
    """Implements `SnapshotStore` over an object store; `wrote` gets each one that was put."""

    def __init__(
        self,
        store: ObjectStore,
        *,
        prefix: str = "",
        wrote: Wrote = ignored,
    ) -> None:
        self._store = store
        self._prefix = prefix
        self._wrote = wrote

    def newest(self, service: str, shard: int) -> Iterator[bytes]:
        """The kept snapshots, newest first, each read when it is asked for."""
        for key in reversed(self._keys(service, shard)):
            yield self._store.get(key)

    def put(self, header: SnapshotHeader, data: bytes) -> None:
        """Keep one, then remove the oldest ones, and those of another log."""
        folder = self._folder(header.service, header.shard)
        own = f"{folder}{header.next_seq:020d}.{header.state}.snapshot"
        self._store.put(own, data)
        self._wrote(header)
        keys = self._keys(header.service, header.shard)
        formats: dict[str, list[str]] = {}
        for key in keys:
            if _seq(key) <= header.next_seq:
                formats.setdefault(_format(key), []).append(key)
        stay = {key for kept in formats.values() for key in kept[-1:]}
        stay.update(formats[_format(own)][-KEPT:])
        for key in set(keys) - stay:
            self._store.delete(key)

    def _keys(self, service: str, shard: int) -> list[str]:
        return [info.key for info in self._store.list(self._folder(service, shard))]

    def _folder(self, service: str, shard: int) -> str:
        return f"snapshots/{self._prefix}{service}/{shard}/"


def _seq(key: str) -> int:
    return int(key.rpartition("/")[2].partition(".")[0])


def _format(key: str) -> str:
    return key.rpartition("/")[2].partition(".")[2]


def stored_snapshots(url: str, *, prefix: str = "", wrote: Wrote = ignored) -> StoredSnapshots:
    """Those of a store. Raises StoreError for a URL that names none."""
    return StoredSnapshots(open_store(url, options=_IMPATIENT), prefix=prefix, wrote=wrote)


def open_snapshots(
    service: str,
    settings: DecidingSettings,
    codec: SnapshotCodec[StateT],
) -> Callable[[Wrote], Snapshots[StateT] | None]:
    """The function that opens the snapshots of one shard; it gives None without a configured store.

    Its argument gets each one that was written. Raises StoreError for a URL that names no store.
    """
    if settings.store_url is None:
        return lambda _: None
    store = open_store(settings.store_url, options=_IMPATIENT)

    def run(work: Callable[[], None]) -> None:
        # A daemon: a stop waits for the last snapshot for some seconds, see deciding.py.
        threading.Thread(target=work, name=f"snapshot-{service}", daemon=True).start()

    return lambda wrote: Snapshots(
        StoredSnapshots(store, prefix=settings.topic_prefix, wrote=wrote),
        codec,
        every=settings.snapshot_every,
        every_s=settings.snapshot_every_s,
        refold=settings.refold,
        run=run,
    )
