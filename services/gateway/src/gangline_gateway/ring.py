"""The newest records of one partition, bounded by number and bytes. Not thread-safe."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

from gangline_bus.ports import Record

MAX_RECORDS = 4096
MAX_BYTES = 8 << 20


@dataclass(slots=True)
class Ring:
    """All records of offsets `start <= offset < end`; older ones are on the bus only."""

    start: int
    end: int
    _records: list[Record] = field(default_factory=list)
    _offsets: list[int] = field(default_factory=list)
    _bytes: int = 0

    def add(self, record: Record) -> None:
        """Appends a record; records come in order, and one that is there already is skipped."""
        if record.offset < self.end:
            return
        self._records.append(record)
        self._offsets.append(record.offset)
        self._bytes += len(record.value)
        self.end = record.offset + 1
        if len(self._records) > MAX_RECORDS or self._bytes > MAX_BYTES:
            self._trim()

    def reached(self, position: int) -> None:
        """Moves `end` to the reader's position, after control records."""
        self.end = max(self.end, position)

    def read(self, position: int, limit: int) -> list[Record]:
        """Up to `limit` records from `position` on."""
        index = bisect_left(self._offsets, position)
        return self._records[index : index + limit]

    def _trim(self) -> None:
        """Drops the oldest quarter, and more while there are too many bytes."""
        drop = max(1, len(self._records) // 4)
        size = self._bytes - sum(len(record.value) for record in self._records[:drop])
        while size > MAX_BYTES and drop < len(self._records) - 1:
            size -= len(self._records[drop].value)
            drop += 1
        self.start = self._offsets[drop - 1] + 1
        self._records = self._records[drop:]
        self._offsets = self._offsets[drop:]
        self._bytes = size
