"""xxh3-128, the checksum of shards and manifests, as 32 hex digits (seed 0).

It finds damage, not malice: a writer of the store can forge a match.
"""

from pathlib import Path

import xxhash

from gangline_storage.errors import DamagedObject
from gangline_storage.port import CHUNK_BYTES, ObjectStore


class Digest:
    """A running digest: `update` with the bytes in order, read `hexdigest` at any time."""

    def __init__(self) -> None:
        self._hash = xxhash.xxh3_128()
        self._size_bytes = 0

    def update(self, data: bytes | bytearray | memoryview) -> None:
        """Take in the next bytes."""
        self._hash.update(data)
        self._size_bytes += memoryview(data).nbytes

    @property
    def size_bytes(self) -> int:
        """How many bytes were taken in."""
        return self._size_bytes

    def hexdigest(self) -> str:
        """The digest of all bytes so far: 32 lower-case hex digits."""
        return self._hash.hexdigest()


def digest_bytes(data: bytes | bytearray | memoryview) -> str:
    """The digest of `data`."""
    return xxhash.xxh3_128_hexdigest(data)


def digest_file(path: Path) -> str:
    """The digest of the file's bytes, read in chunks. Raises OSError."""
    digest = Digest()
    buffer = bytearray(CHUNK_BYTES)
    view = memoryview(buffer)
    with path.open("rb", buffering=0) as file:
        while size := file.readinto(buffer):
            digest.update(view[:size])
    return digest.hexdigest()


def read_verified(store: ObjectStore, key: str, xxh3: str, most_bytes: int) -> bytes:
    """The bytes of an object whose digest is known, at most `most_bytes`.

    Raises DamagedObject if they are others or more, NotFound and StoreError.
    """
    size = store.head(key).size_bytes
    if size > most_bytes:
        raise DamagedObject(f"{key} has {size:,} bytes; at most {most_bytes:,} are read")
    found = store.get(key)
    if digest_bytes(found) != xxh3:
        raise DamagedObject(f"{key} is damaged: it is not what its digest says")
    return found
