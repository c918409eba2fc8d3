r"""One run's folder on disk: everything that the run logged, until the server has it.

- `run.json`: the run's description (`Header`), written once.
- `log.00001.jsonl`: all that was logged, in order; further segments follow.
- `upload.json`: how far it was uploaded, and as which run of which server (`Uploaded`).
- `files/`: artifacts, as they were when they were logged.

A line that begins with `{` is a metric as MLflow's log-batch takes it, so an upload need not read
it. Other lines are lists: ["params", {...}], ["tags", {...}], ["file", in files/, its name],
["status", status, Unix ms of the end or null], ["over"]: the end of a run whose status is set by
others. A last line without `\n` was not written to its end and does not count.

The process that writes holds a lock, which ends with it. `gangline sync` takes the same lock.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

SEGMENT_BYTES: Final = 8 << 20
BATCH_POINTS: Final = 1000
LONGEST_LINE: Final = 256 << 20
"""Bytes; a folder from elsewhere may have any lines."""
_READ_BYTES: Final = 256 << 10
FOLDER: Final = "gangline-offline"
"""Where runs are kept, in the working directory, unless another place is named."""
HEADER: Final = "run.json"


class Header(BaseModel):
    """A run's description, as its process gave it."""

    model_config = ConfigDict(frozen=True)

    client_id: str
    """A tag of the run on the server, so that it is made once."""
    experiment: str | None = None
    """None: the team's, of `project`."""
    project: str = "default"
    team: str | None = None
    name: str | None = None
    tags: dict[str, str] = Field(default_factory=dict)
    started_ms: int = 0
    run_id: str | None = None
    """Of a run that was there before: the job's, or one that is continued."""
    sets_status: bool = True
    """Not for a job's own run: its status is the job's."""


class Uploaded(BaseModel):
    """How far a folder was uploaded: everything before `offset` of `segment`."""

    model_config = ConfigDict(frozen=True)

    server: str = ""
    team: str | None = None
    run_id: str | None = None
    segment: int = 1
    offset: int = 0
    done: bool = False
    """The run's end was uploaded too."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Metrics in a row, or one other record; (`segment`, `offset`) is the place behind it."""

    metrics: Sequence[bytes]
    record: Sequence[Any] | None
    segment: int
    offset: int
    size: int
    """Bytes."""


_DAMAGED: Final = ["damaged"]
_held: set[Path] = set()
"""This process's folders: its second lock on one would succeed, and end the first."""


class Damaged(Exception):
    """A folder is not as a run leaves it."""


class Spool:
    """A run's folder, locked by this process."""

    def __init__(self, folder: Path, header: Header, lock: int) -> None:
        self.folder, self.header, self._lock = folder, header, lock
        self.written = self.removed = 0
        self._segment, self._file, self._length = 0, -1, 0
        self.uploaded = Uploaded()
        self._files = 0

    @classmethod
    def make(cls, folder: Path, header: Header) -> Self:
        """A new folder. Raises OSError."""
        folder.mkdir(parents=True, mode=0o700)
        (folder / ".gitignore").write_text("*\n", encoding="utf-8")
        lock = _lock(folder)
        if lock is None:
            raise OSError(f"{folder} is locked")
        part = folder / f"{HEADER}.part"
        part.write_text(header.model_dump_json(indent=1), encoding="utf-8")
        part.rename(folder / HEADER)
        return cls(folder, header, lock)

    @classmethod
    def take(cls, folder: Path) -> Self | None:
        """The folder of a process that has ended; None: it is still written. Raises Damaged."""
        try:
            header = Header.model_validate_json((folder / HEADER).read_bytes())
            lock = _lock(folder)
        except (OSError, ValidationError) as error:
            raise Damaged(f"is no run's folder: {str(error).splitlines()[0]}") from None
        return None if lock is None else cls(folder, header, lock)

    # Writing

    def append(self, lines: bytes) -> None:
        """Write whole lines, or none of them. Raises OSError."""
        if self._file < 0 or self._length >= SEGMENT_BYTES:
            self._next_segment()
        left = memoryview(lines)
        try:
            while left:
                left = left[os.write(self._file, left) :]
        except OSError:
            os.ftruncate(self._file, self._length)
            raise
        self._length += len(lines)
        self.written += len(lines)

    def _next_segment(self) -> None:
        path = self._path(self._segment + 1)
        opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
        if self._file >= 0:
            os.close(self._file)
        self._file, self._length, self._segment = opened, 0, self._segment + 1

    def keep_file(self, source: Path, name: str) -> list[str]:
        """Copy a file here; gives its record. Raises OSError."""
        self._files += 1
        kept = f"{self._files:05d}"
        (self.folder / "files").mkdir(exist_ok=True)
        shutil.copyfile(source, self.folder / "files" / kept)
        return ["file", kept, name]

    # Reading

    def begin(self, server: str) -> None:
        """Set `uploaded` to what was noted for this server, or to the beginning."""
        try:
            noted = Uploaded.model_validate_json((self.folder / "upload.json").read_bytes())
        except (OSError, ValidationError):
            noted = Uploaded()
        if noted.server != server:
            noted = Uploaded(server=server)
        segments = sorted(self.folder.glob("log.*.jsonl"))
        first = int(segments[0].name.split(".")[1]) if segments else 1
        if first > noted.segment:  # those before were uploaded, and a full disk took no note of it
            noted = noted.model_copy(update={"segment": first, "offset": 0})
        self.uploaded = noted

    def next_batch(self) -> Batch | None:
        """The batch behind `uploaded`; None: there is none yet."""
        segment, offset = self.uploaded.segment, self.uploaded.offset
        while True:
            is_last = not self._path(segment + 1).exists()  # asked first: nothing is added later
            batch = self._read(segment, offset)
            if batch is not None or is_last:
                return batch
            segment, offset = segment + 1, 0

    def _read(self, segment: int, offset: int) -> Batch | None:
        try:
            with self._path(segment).open("rb") as file:
                file.seek(offset)
                text = file.read(_READ_BYTES)
                if text and b"\n" not in text:
                    text += file.readline(LONGEST_LINE)
                if b"\n" not in text and len(text) > LONGEST_LINE:
                    return _skipped(file, segment, offset + len(text), len(text))
        except FileNotFoundError:
            return None
        lines = text[: text.rfind(b"\n") + 1].splitlines(keepends=True)
        if not lines:
            return None
        count = 0
        for line in lines[:BATCH_POINTS]:
            if line[:1] != b"{":
                break
            count += 1
        taken = lines[: max(1, count)]
        size = sum(map(len, taken))
        record = None if count else _record(taken[0])
        metrics = [line[:-1] for line in taken] if count else []
        return Batch(metrics, record, segment, offset + size, size)

    def note(self, uploaded: Uploaded, *, keep: bool) -> None:
        """Remember how far it was uploaded; without `keep` segments before that are removed."""
        self.uploaded = uploaded
        with suppress(OSError):  # then it is uploaded again, which changes nothing
            part = self.folder / "upload.part"
            part.write_text(uploaded.model_dump_json(), encoding="utf-8")
            part.rename(self.folder / "upload.json")
        if not keep:
            for segment in range(uploaded.segment - 1, 0, -1):
                path = self._path(segment)
                try:
                    size = path.stat().st_size
                    path.unlink()
                except OSError:
                    break
                self.removed += size

    @property
    def last_write_ms(self) -> int:
        """When the log was last written, as Unix time."""
        logs = [path.stat().st_mtime for path in self.folder.glob("log.*.jsonl")]
        return round(max(logs, default=self.header.started_ms / 1000) * 1000)

    @property
    def left(self) -> int:
        """Bytes of the log that were not uploaded."""
        total, segment = -self.uploaded.offset, self.uploaded.segment
        while (path := self._path(segment)).exists():
            total, segment = total + path.stat().st_size, segment + 1
        return max(0, total)

    def close(self, *, remove: bool = False) -> None:
        """Give the lock back; with `remove` the folder goes, and its parent if that is empty."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        if remove:
            shutil.rmtree(self.folder, ignore_errors=True)
            with suppress(OSError):
                self.folder.parent.rmdir()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1
            _held.discard(self.folder.resolve())

    def _path(self, segment: int) -> Path:
        return self.folder / f"log.{segment:05d}.jsonl"


def line_of(record: Sequence[Any]) -> bytes:
    """A record that is not a metric, as a line."""
    return json.dumps(record, separators=(",", ":")).encode() + b"\n"


def runs_below(folder: Path) -> list[Path]:
    """The runs' folders that are `folder` or lie in it, the oldest first."""
    if (folder / HEADER).exists():
        return [folder]
    return sorted(path.parent for path in folder.glob(f"*/{HEADER}"))


def _skipped(file: BinaryIO, segment: int, offset: int, size: int) -> Batch | None:
    """A line that is too long, as a damaged one; None: it has no end."""
    while piece := file.readline(_READ_BYTES):
        offset, size = offset + len(piece), size + len(piece)
        if piece.endswith(b"\n"):
            return Batch([], _DAMAGED, segment, offset, size)
    return None


def _record(line: bytes) -> Sequence[Any]:
    try:
        read = json.loads(line)
    except ValueError:
        read = None
    return read if isinstance(read, list) and read else _DAMAGED


def _lock(folder: Path) -> int | None:
    """Lock a folder for this process; a forked child does not have this lock. Raises OSError."""
    place = folder.resolve()
    if place in _held:
        return None
    opened = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.lockf(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(opened)
        return None
    _held.add(place)
    return opened
