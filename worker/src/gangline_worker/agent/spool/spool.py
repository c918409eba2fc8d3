"""Records that wait on disk for the bus: they survive its absence and the agent's death.

A spool is a folder of segments, each a run of framed records (length, CRC-32, payload), and a
`released` file: everything before that position is safe on the bus. Records are read in the order
in which they were appended; after a crash those after `released` are read again (at least once,
with the same event ids). A torn record at a segment's end is left out. So are damaged records and
what cannot be read, and `damaged` counts them: the rest is sent all the same.

With a limit, the oldest segments go first when the disk share is used up; `dropped` counts them.

While the disk takes nothing, what comes is held in memory, up to a bound, as a segment that has no
file yet; it gets one as soon as there is room (`save`).
"""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import struct
import threading
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from gangline_bus.ports import OutRecord

_FRAME = struct.Struct(">II")
_SEGMENT_BYTES = 4 * 1024 * 1024
_SUFFIX = ".spool"


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """After a record: its segment, and the offset of its end in it."""

    segment: int
    offset: int


@dataclass(frozen=True, slots=True)
class Spooled:
    """A record, and the position after it."""

    record: OutRecord
    end: Position


class Spool:
    """One queue on disk. All methods may be called from any thread.

    `sync`: an append is on the disk when it returns (control events). `limit_bytes` None: nothing
    is ever dropped. `memory_bytes`: so much may be held in memory; then, and by default at once,
    an append fails that the disk does not take.
    """

    def __init__(
        self,
        folder: Path,
        *,
        sync: bool,
        limit_bytes: int | None = None,
        memory_bytes: int = 0,
        segment_bytes: int = _SEGMENT_BYTES,
    ) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder = folder
        self._sync = sync
        self._limit = limit_bytes
        self._memory_bytes = memory_bytes
        self._held: bytearray | None = None
        self._trouble: str | None = None
        self._segment_bytes = segment_bytes
        self._changed = threading.Condition()  # the thread that has its lock may take it again
        self._sizes = {
            int(path.stem): path.stat().st_size
            for path in folder.glob(f"*{_SUFFIX}")
            if path.stem.isdecimal()
        }
        self._released = self._read_released()
        self._next = self._released
        self._current = max([*self._sizes, self._released.segment, 0]) + 1
        self._sizes[self._current] = 0
        self._file: int | None = None  # the current segment's, once there is one
        self._dropped = 0
        self._damaged = 0
        self._delete_before(self._released.segment)

    @property
    def dropped(self) -> int:
        """How many records were given up for the limit since the start."""
        return self._dropped

    @property
    def damaged(self) -> int:
        """How many records or files were left out since the start, because they are damaged."""
        return self._damaged

    @property
    def held_bytes(self) -> int:
        """How much is in memory alone."""
        with self._changed:
            return len(self._held or b"")

    @property
    def trouble(self) -> str | None:
        """Why records are, or were last, held in memory; None once one was written since."""
        return self._trouble

    @property
    def waiting(self) -> bool:
        """Whether records are not yet safe on the bus."""
        with self._changed:
            return any(
                size > (self._released.offset if segment == self._released.segment else 0)
                for segment, size in self._sizes.items()
                if segment >= self._released.segment
            )

    def append(self, record: OutRecord) -> None:
        """Add a record. Raises OSError when it can be neither written nor held."""
        payload = _pack(record)
        frame = _FRAME.pack(len(payload), zlib.crc32(payload)) + payload
        with self._changed:
            self.save()
            if self._held:
                self._hold(frame, self._trouble)
            else:
                try:
                    self._write(frame)
                    self._held = self._trouble = None
                except OSError as error:
                    self._hold(frame, error.strerror or str(error))
            self._changed.notify_all()

    def save(self) -> None:
        """Write what is held in memory to the disk, if that takes it now."""
        with self._changed, contextlib.suppress(OSError):
            if self._held:
                self._file = self._create(self._held)
                self._held = self._trouble = None
                self._write_released()

    def unsaved(self) -> bytes:
        """The records that are in memory alone and not safe on the bus, for `adopt`."""
        with self._changed:
            start = self._released.offset if self._released.segment == self._current else 0
            return bytes(self._held[start:]) if self._held is not None else b""

    def adopt(self, unsaved: bytes) -> None:
        """Take up, in a new spool, what the last one of this process had in memory alone."""
        with self._changed:
            if unsaved:
                self._held = bytearray(unsaved)
                self._sizes[self._current] = len(unsaved)
                self._trouble = "the disk took it no more"
                self.save()
                self._changed.notify_all()

    def take(self, max_records: int, timeout_s: float) -> list[Spooled]:
        """The next records, waiting up to `timeout_s` for the first one."""
        with self._changed:
            self._changed.wait_for(self._has_next, timeout_s)
            found: list[Spooled] = []
            while len(found) < max_records and self._has_next():
                damaged = self._damaged
                more = self._read(self._next, max_records - len(found))
                if more:
                    found += more
                    self._next = more[-1].end
                else:
                    self._leave_segment(counted=self._damaged > damaged)
            return found

    def release(self, position: Position) -> None:
        """Everything up to this position is safe on the bus."""
        with self._changed:
            if position <= self._released:
                return
            self._released = position
            self._write_released()
            self._delete_before(position.segment)
            if self._held is not None and not self.waiting:
                self._begin_segment()
                self._held = bytearray()

    def rewind(self) -> None:
        """Give out again what was taken and not released."""
        with self._changed:
            self._next = self._released

    def close(self) -> None:
        """Close the files; the next spool in this folder reads the records that wait."""
        with self._changed:
            self.save()
            self._write_released()
            if self._file is not None:
                os.close(self._file)

    def _leave_segment(self, *, counted: bool) -> None:
        """Read on after the segment: nothing more of it can be read."""
        after = Position(self._next.segment + 1, 0)
        if self._next.segment == self._current:  # its file was cut, or removed
            self._damaged += not counted
            self._begin_segment()
        self._next = max(self._next, after)

    def _has_next(self) -> bool:
        return self._next.segment < self._current or (
            self._next.offset < self._sizes[self._current]
        )

    def _write(self, frame: bytes) -> None:
        if self._sizes[self._current] >= self._segment_bytes:
            self._begin_segment()
        if self._file is None:
            self._file = self._create(b"")
        start = self._sizes[self._current]
        try:
            _write_all(self._file, frame)
            if self._sync:
                os.fdatasync(self._file)
        except OSError:
            # Half a frame must not stand in the way of what comes after it.
            os.ftruncate(self._file, start)
            os.lseek(self._file, start, os.SEEK_SET)
            raise
        self._sizes[self._current] = start + len(frame)

    def _hold(self, frame: bytes, trouble: str | None) -> None:
        """Keep it in memory, in a segment of its own. Raises OSError without room."""
        held = self._held or b""
        if len(held) + len(frame) > self._memory_bytes:
            raise OSError(errno.ENOSPC, trouble or "no room")
        if self._held is None or self._file is not None:
            self._begin_segment()
            self._held, self._trouble = bytearray(), trouble
        self._held += frame
        self._sizes[self._current] = len(self._held)

    def _create(self, content: bytes | bytearray) -> int:
        """The current segment's file with this content, open at its end. Raises OSError."""
        path = self._path(self._current)
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            _write_all(file, content)
            if self._sync:
                os.fdatasync(file)
        except OSError:
            os.close(file)
            path.unlink(missing_ok=True)
            raise
        return file

    def _begin_segment(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None
        self._current += 1
        self._sizes[self._current] = 0
        if self._limit is None:
            return
        while sum(self._sizes.values()) > self._limit and min(self._sizes) < self._current:
            self._drop(min(self._sizes))

    def _drop(self, segment: int) -> None:
        start = self._released if self._released.segment == segment else Position(segment, 0)
        self._dropped += len(self._read(start, None))
        after = Position(segment + 1, 0)
        self._released = max(self._released, after)
        self._next = max(self._next, after)
        self._delete_before(segment + 1)

    def _delete_before(self, segment: int) -> None:
        for old in [index for index in self._sizes if index < segment]:
            with contextlib.suppress(OSError):  # read-only now: the next agent here deletes it
                self._path(old).unlink(missing_ok=True)
            del self._sizes[old]

    def _read(self, start: Position, max_records: int | None) -> list[Spooled]:
        """Whole records of one segment from `start` on."""
        found: list[Spooled] = []
        try:
            with self._open(start.segment) as file:
                file.seek(start.offset)
                while max_records is None or len(found) < max_records:
                    head = file.read(_FRAME.size)
                    if len(head) < _FRAME.size:
                        break
                    length, checksum = _FRAME.unpack(head)
                    payload = file.read(length)
                    if len(payload) < length:
                        break
                    record = _unpack(payload) if zlib.crc32(payload) == checksum else None
                    if record is None:
                        self._damaged += 1
                        continue
                    found.append(Spooled(record, Position(start.segment, file.tell())))
        except OSError:
            if start.segment in self._sizes:
                self._damaged += 1
        return found

    def _open(self, segment: int) -> BinaryIO:
        if segment == self._current and self._held is not None:
            return io.BytesIO(self._held)
        return self._path(segment).open("rb")

    def _path(self, segment: int) -> Path:
        return self._folder / f"{segment:012d}{_SUFFIX}"

    def _read_released(self) -> Position:
        try:
            segment, offset = (self._folder / "released").read_text().split()
            return Position(int(segment), int(offset))
        except (FileNotFoundError, ValueError):
            return Position(min(self._sizes, default=0), 0)

    def _write_released(self) -> None:
        temporary = self._folder / "released.new"
        with contextlib.suppress(OSError):  # a full disk: after a crash more is sent again
            temporary.write_text(f"{self._released.segment} {self._released.offset}")
            temporary.replace(self._folder / "released")


def _write_all(file: int, content: bytes | bytearray) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(file, view) :]


def _pack(record: OutRecord) -> bytes:
    head = [
        record.topic,
        record.key.decode() if record.key is not None else None,
        [[name, value.decode()] for name, value in record.headers],
    ]
    return json.dumps(head, separators=(",", ":")).encode() + b"\n" + record.value


def _unpack(payload: bytes) -> OutRecord | None:
    """The record; None: it has another form, of a later version."""
    head, _, value = payload.partition(b"\n")
    try:
        topic, key, headers = json.loads(head)
    except (ValueError, TypeError):
        return None
    return OutRecord(
        topic,
        key.encode() if key is not None else None,
        value,
        tuple((name, text.encode()) for name, text in headers),
    )
