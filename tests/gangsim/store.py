"""The object store in memory, with what object stores do on bad days."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from threading import Lock
from typing import BinaryIO

from gangline_storage.durable import replace_file
from gangline_storage.errors import AlreadyExists, NotFound, StoreFull, StoreUnavailable
from gangline_storage.keys import check_delete_prefix, check_key, check_prefix, check_range
from gangline_storage.pace import Pace
from gangline_storage.port import CHUNK_BYTES, ObjectInfo


class SimStore:
    """`gangline_storage.ObjectStore` without files of its own; it passes the contract suite.

    `away` fails every call, half of the writes after their effect; `full` refuses writes; the
    next `torn` puts of shards keep only half of their bytes and are acknowledged all the same.
    """

    def __init__(self, random: Random) -> None:
        self.objects: dict[str, bytes] = {}
        self.damaged: dict[str, str] = {}
        self.away = False
        self.full = False
        self.torn = 0
        self._random = random
        self._one_writer = Lock()  # the contract has threads, the simulator has one

    def flip(self) -> str | None:
        """Flip a bit of some stored shard; its key."""
        keys = [key for key in sorted(self.objects) if key.endswith(".bin")]
        if not keys:
            return None
        key = self._random.choice(keys)
        data = bytearray(self.objects[key])
        data[self._random.randrange(len(data))] ^= 1
        self.objects[key] = bytes(data)
        self.damaged[key] = "flipped"
        return key

    def put(self, key: str, data: bytes | BinaryIO, *, if_absent: bool = False) -> ObjectInfo:
        """Store bytes."""
        check_key(key)
        chunks = [data] if isinstance(data, bytes) else iter(lambda: data.read(CHUNK_BYTES), b"")
        raw = b"".join(chunks)
        with self._one_writer:
            return self._put(key, raw, if_absent=if_absent)

    def _put(self, key: str, raw: bytes, *, if_absent: bool) -> ObjectInfo:
        if self.full:
            raise StoreFull(f"{key}: no room")
        before = self._random.random() < 0.5
        if self.away and before:
            raise StoreUnavailable(f"{key}: 503")
        if if_absent and key in self.objects:
            raise AlreadyExists(key)
        if self.torn and key.endswith(".bin"):
            self.torn -= 1
            raw = raw[: len(raw) // 2]
            self.damaged[key] = "torn"
        else:
            self.damaged.pop(key, None)
        self.objects[key] = raw
        if self.away:
            raise StoreUnavailable(f"{key}: 500 after the effect")
        return ObjectInfo(key, len(raw))

    def put_file(
        self,
        key: str,
        path: Path,
        *,
        if_absent: bool = False,
        link: bool = False,
        pace: Pace | None = None,
    ) -> ObjectInfo:
        """Store what the file holds, at once; nothing is shared with it."""
        return self.put(key, path.read_bytes(), if_absent=if_absent)

    def get(self, key: str) -> bytes:
        """All bytes."""
        check_key(key)
        if self.away:
            raise StoreUnavailable(f"{key}: 503")
        try:
            return self.objects[key]
        except KeyError:
            raise NotFound(key) from None

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """Some bytes."""
        check_range(start, length)
        return self.get(key)[start : start + length]

    def stream(
        self, key: str, chunk_bytes: int = CHUNK_BYTES, *, start: int = 0
    ) -> Iterator[bytes]:
        """All bytes in chunks."""
        data = self.get(key)
        return iter([data[at : at + chunk_bytes] for at in range(start, len(data), chunk_bytes)])

    def fetch(self, key: str, path: Path, *, link: bool = False) -> ObjectInfo:
        """Write all bytes to a file; nothing is shared with it."""
        return ObjectInfo(key, replace_file(path, [self.get(key)]))

    def head(self, key: str) -> ObjectInfo:
        """Describe an object."""
        return ObjectInfo(key, len(self.get(key)))

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Objects by key."""
        check_prefix(prefix)
        if self.away:
            raise StoreUnavailable(f"{prefix}: 503")
        keys = [key for key in sorted(self.objects) if key.startswith(prefix)]
        return iter([ObjectInfo(key, len(self.objects[key])) for key in keys])

    def delete(self, key: str) -> None:
        """Remove an object."""
        check_key(key)
        if self.away:
            raise StoreUnavailable(f"{key}: 503")
        self.objects.pop(key, None)
        self.damaged.pop(key, None)

    def delete_prefix(self, prefix: str) -> int:
        """Remove a folder; a store that goes away may have removed half of it."""
        check_delete_prefix(prefix)
        keys = [key for key in sorted(self.objects) if key.startswith(prefix)]
        gone = keys[: len(keys) // 2] if self.away else keys
        for key in gone:
            del self.objects[key]
            self.damaged.pop(key, None)
        if self.away:
            raise StoreUnavailable(f"{prefix}: 503")
        return len(gone)

    def remove_partial(self, *, older_than_s: float) -> int:
        """Nothing partial is ever left here."""
        del older_than_s
        if self.away:
            raise StoreUnavailable("list uploads: 503")
        return 0
