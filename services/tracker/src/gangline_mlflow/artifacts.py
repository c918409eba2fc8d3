"""The files of all teams' artifacts on the object store. Knows nothing of MLflow.

A path is `workspaces/TEAM/...` below the store's root. `owned` refuses each path of another team,
and the store itself refuses dots, backslashes and control characters, and follows no symbolic link.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, cast

from gangline_storage.errors import InvalidKey, NotFound
from gangline_storage.keys import check_key
from gangline_storage.port import ObjectStore

if TYPE_CHECKING:  # they import SQLAlchemy, which takes memory before the first request
    from gangline_mlflow.artifact_bytes import ArtifactBytes, Change
    from gangline_mlflow.bodies import RequestBody


WAITING_KNOWN_S = 15.0
"""So long the bytes of parts of a team's open uploads count as they were: they are slow to count.

A file that goes above the limit is refused when its upload ends, whatever was counted before.
"""


class OverLimit(Exception):
    """A team may not store this. The message names its limit and use."""


class Waiting(NamedTuple):
    """Open uploads of a team, and the bytes of their parts that are stored."""

    bytes: int
    uploads: int


NONE_WAITS = Waiting(0, 0)


@dataclass
class _Known:
    """A count, when it was made, and how many uploads have begun since."""

    at_s: float
    found: Waiting
    begun: int = 0

    def lasts(self, now_s: float) -> bool:
        """Whether it still says enough."""
        return now_s - self.at_s < WAITING_KNOWN_S and self.begun < self.found.uploads // 2


_WAIT_S = 10.0
"""A slow upload must not hold threads that other requests need."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A file or a folder, as one listing shows it."""

    path: str
    size_bytes: int | None
    """None for a folder."""


def owned(team: str, path: str) -> str:
    """The path, if it lies in the team's folder and can be a file's. Raises InvalidKey."""
    if not team or not path.startswith(f"workspaces/{team}/"):
        raise InvalidKey("path: is not in this team's folder")
    return check_key(path)


class Busy(Exception):
    """Another request writes this file now."""


class Artifacts:
    """Reads and writes; may be used from any thread. Methods raise the store's errors."""

    def __init__(self, store: ObjectStore, seconds: Callable[[], float] = time.monotonic) -> None:
        self.store = store
        self._seconds = seconds
        self._counts: ArtifactBytes | None = None
        self._writing = KeyLocks()
        self._counting = KeyLocks()
        self._waiting: dict[str, _Known] = {}

    def count_in(self, counts: ArtifactBytes) -> None:
        """Count and limit each team's bytes from now on."""
        self._counts = counts

    def put(self, path: str, body: RequestBody | BinaryIO, size_bytes: int | None = None) -> None:
        """Store a file whole, or nothing of it. Raises OverLimit.

        `size_bytes`, if known, is checked before anything is stored.
        """
        with self._writing.hold(path), self._changing(path, size_bytes or 0) as change:
            before = self._size(path)
            source = _Metered(body, change)
            self.store.put(path, cast("BinaryIO", source))
            change.added = source.size_bytes - before

    def replace(self, path: str, size_bytes: int, write: Callable[[], None]) -> None:
        """Count a file that `write` makes at once, or replaces. Raises OverLimit before, Busy.

        It counts as large as it is then: parts may change until they are a file.
        """
        with self._writing.hold(path, _WAIT_S), self._changing(path, size_bytes) as change:
            before = self._size(path)
            write()
            change.added = self._size(path) - before

    def check_room(self, path: str, waiting: Callable[[], Waiting] = lambda: NONE_WAITS) -> None:
        """Raises OverLimit when the team of this path has no room left.

        `waiting` counts what is stored and no file yet, at a cost for each upload. It is not asked
        for a team without a limit. For others an earlier count does, for `WAITING_KNOWN_S` and half
        as many further uploads as it found, and unless there is no room by it.
        """
        counts, team = self._counts, path.split("/")[1]
        if counts is None or not counts.is_limited(team):
            with self._changing(path, 1):
                return
        with self._counting.hold(team):
            known = self._waiting.get(team)
            if known is not None and known.lasts(self._seconds()):
                known.begun += 1
                with suppress(OverLimit), self._changing(path, max(1, known.found.bytes)):
                    return
            known = self._waiting[team] = _Known(self._seconds(), waiting())
            with self._changing(path, max(1, known.found.bytes)):
                return

    def listed(self, folder: str) -> list[Entry]:
        """The files and folders right below a folder; empty for a file, and where nothing is.

        Cost: one request for 1,000 files below the folder, at any depth.
        """
        prefix = f"{folder.rstrip('/')}/"
        found: dict[str, Entry] = {}
        for info in self.store.list(prefix):
            name, slash, _ = info.key.removeprefix(prefix).partition("/")
            path = prefix + name
            found.setdefault(path, Entry(path, None if slash else info.size_bytes))
        return list(found.values())

    def delete(self, path: str) -> None:
        """Remove a file, or a folder with all that is below it; it may be absent.

        Raises Busy when one of them is being written.
        """
        with self._changing(path, 0, limited=False) as change:
            change.added = -self._removed(path)
            for info in self.store.list(f"{path}/"):
                change.added -= self._removed(info.key)

    def bytes_of(self, team: str) -> int:
        """The bytes of a team, by a listing."""
        return sum(info.size_bytes for info in self.store.list(f"workspaces/{team}/"))

    def _removed(self, path: str) -> int:
        """Remove a file, as large as it is now: a listing may be older than an upload."""
        with self._writing.hold(path, _WAIT_S):
            size_bytes = self._size(path)
            self.store.delete(path)
        return size_bytes

    def _size(self, path: str) -> int:
        try:
            return self.store.head(path).size_bytes
        except NotFound:
            return 0

    @contextmanager
    def _changing(self, path: str, size_bytes: int, *, limited: bool = True) -> Iterator[Change]:
        if self._counts is None:
            raise RuntimeError("call count_in first")
        team = path.split("/")[1]
        with self._counts.change(team, size_bytes=size_bytes, limited=limited) as change:
            yield change


class _Metered:
    """A body that announces its bytes as they come."""

    def __init__(self, body: RequestBody | BinaryIO, change: Change) -> None:
        self._body, self._change = body, change
        self.size_bytes = 0

    def read(self, size: int) -> bytes:
        """Up to `size` bytes; none at the end. Raises OverLimit."""
        piece = self._body.read(size)
        self.size_bytes += len(piece)
        self._change.expect(self.size_bytes)
        return piece


class KeyLocks:
    """A lock for each key while it is held."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._locks: dict[str, tuple[threading.Lock, int]] = {}

    @contextmanager
    def hold(self, key: str, wait_s: float = -1) -> Iterator[None]:
        """Hold the key's lock during the block. Raises Busy after `wait_s`; -1: never."""
        with self._guard:
            lock, users = self._locks.get(key, (threading.Lock(), 0))
            self._locks[key] = (lock, users + 1)
        try:
            if not lock.acquire(timeout=wait_s):
                raise Busy(f"{key} is being written; try again later")
            try:
                yield
            finally:
                lock.release()
        finally:
            with self._guard:
                _, users = self._locks[key]
                if users == 1:
                    del self._locks[key]
                else:
                    self._locks[key] = (lock, users - 1)
