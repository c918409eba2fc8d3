"""The object store of services and workers: a flat map from keys to bytes that never change.

Every implementation promises this, and one contract suite tests all of them:

- An object exists whole or not at all. A writer that dies half-way leaves no object.
- When a put returns, the object is durable and every reader sees it.
- `if_absent=True` decides one winner among any number of concurrent writers.
- Keys are compared by their bytes, listed in that order, and checked by `keys.check_key`.
- A key is never the folder of another key ('a' and 'a/b' cannot both be objects).
- If the store is away, a call retries a bounded number of times and logs each retry. Then it raises
  `StoreUnavailable`. All methods may be called from many threads.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol, runtime_checkable

from gangline_storage.pace import Pace

CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """One object as a store describes it."""

    key: str
    size_bytes: int


@runtime_checkable
class ObjectStore(Protocol):
    """Where checkpoints, snapshots and code archives live."""

    def put(self, key: str, data: bytes | BinaryIO, *, if_absent: bool = False) -> ObjectInfo:
        """Store `data` under `key`; a stream is read to its end.

        Raises:
            AlreadyExists: `if_absent` is set and the key has an object.
            InvalidKey, StoreFull, StoreUnavailable, StoreError.
        """
        ...

    def put_file(
        self,
        key: str,
        path: Path,
        *,
        if_absent: bool = False,
        link: bool = False,
        pace: Pace | None = None,
    ) -> ObjectInfo:
        """Store the file at `path`, streamed (in parts, where the store has them).

        `link=True` promises that the file will never be written again. A store on the same file
        system may then hard-link it instead of copying. `pace` limits how fast it is read.
        """
        ...

    def get(self, key: str) -> bytes:
        """Return all bytes of the object. Raises NotFound."""
        ...

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """Return up to `length` bytes from byte `start`: fewer, or none, past the end."""
        ...

    def stream(
        self, key: str, chunk_bytes: int = CHUNK_BYTES, *, start: int = 0
    ) -> Iterator[bytes]:
        """Yield the object from byte `start` in chunks of `chunk_bytes`, the last one shorter.

        Raises NotFound at once. Past the end there are no chunks.

        All chunks are of one version of the object, even if it is replaced meanwhile
        (or StoreError is raised).
        """
        ...

    def fetch(self, key: str, path: Path, *, link: bool = False) -> ObjectInfo:
        """Write the object to `path` atomically and durably, replacing what is there.

        `link=True` says that the file will only be read, so it may share the object's bytes.
        """
        ...

    def head(self, key: str) -> ObjectInfo:
        """Describe the object without reading it. Raises NotFound."""
        ...

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Yield the objects whose key begins with `prefix`, in key order."""
        ...

    def delete(self, key: str) -> None:
        """Remove the object; a missing one is not an error."""
        ...

    def delete_prefix(self, prefix: str) -> int:
        """Remove all objects in the folder `prefix` (it ends with '/'); return how many."""
        ...

    def remove_partial(self, *, older_than_s: float) -> int:
        """Remove what writers that died left behind, if untouched for so long; return how many."""
        ...
