"""The inputs of a loop: polled in batches and taken one by one, so that some can wait."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from datetime import datetime

from gangline_bus.ports import Reader, Record, TopicPartition


class Intake:
    """A reader whose positions follow the taken records, not the polled ones."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._waiting: deque[Record] = deque()
        self._marks: dict[TopicPartition, tuple[int, datetime]] = {}
        self._until: dict[TopicPartition, datetime] = {}

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        """Read these partitions from these offsets on, replacing what was assigned."""
        self._waiting.clear()
        self._marks, self._until = {}, {}
        self._reader.assign(positions)

    def fill(self, max_records: int, timeout_s: float) -> None:
        """Poll the next batch, unless some of the last one waits."""
        if not self._waiting:
            self._waiting.extend(self._reader.poll(max_records, timeout_s))

    def next(self) -> Record | None:
        """The next record, which is not taken yet; None when none waits."""
        return self._waiting[0] if self._waiting else None

    def several(self) -> bool:
        """Whether more than one waits."""
        return len(self._waiting) > 1

    def take(self) -> None:
        """The next record counts as read."""
        self._waiting.popleft()

    def positions(self) -> dict[TopicPartition, int]:
        """The offset of the first record of each partition that was not taken."""
        positions = self._reader.positions()
        for record in reversed(self._waiting):
            positions[record.place] = record.offset
        return positions

    def behind(self) -> dict[TopicPartition, int]:
        """Records of each partition that were not taken."""
        behind = self._reader.behind()
        for record in self._waiting:
            behind[record.place] = behind.get(record.place, 0) + 1
        return behind

    def read_until(self, now: datetime, topics: Collection[str]) -> dict[TopicPartition, datetime]:
        """For each partition of these topics, until when its records were taken, as far as known.

        Each call notes the ends that are known now; a partition was read until then once its
        position has reached that end. So the dates of records do not matter. The first call after
        `assign` gives `now`: no earlier end is known.
        Cost: one look at each partition, none without topics.
        """
        if not topics:
            return {}
        behind = self.behind()
        for place, at in self.positions().items():
            if place.topic not in topics:
                continue
            end, noted = self._marks.get(place, (at, now))
            if at >= end:
                self._until[place] = now if not behind[place] else noted
                self._marks[place] = (at + behind[place], now)
        return dict(self._until)

    def close(self) -> None:
        """Close the reader."""
        self._reader.close()
