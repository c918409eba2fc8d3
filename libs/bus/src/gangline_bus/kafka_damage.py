"""Unreadable parts of a Kafka partition, made into records that describe them.

A batch of a few KB can hold gigabytes of zeros. librdkafka gives up at 100 MB and tries again for
ever, so the partition would never be read again. The error names the batch's first offset and not
its last, so the reader looks for the end of the batch. It seeks ahead in growing steps until
another answer comes, then halves the gap. It skips no readable record.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import methodcaller
from typing import Any

from confluent_kafka import KafkaError, Message

from gangline_bus.ports import Headers, Record, TopicPartition

BAD_BATCH_CODES = {KafkaError._BAD_COMPRESSION, KafkaError._BAD_MSG}
MAX_VALUE_BYTES = 4 * 1024 * 1024
_KEPT_VALUE_BYTES = 64 * 1024


_headers_of = methodcaller("headers")
"""Not `message.headers()`: the client returns with its exception still set, which a plain call
does not always see, so that it would be raised from any line later. Through C it always is."""


@dataclass(slots=True)
class BadBatch:
    """The search for the end of a batch that cannot be read.

    `base` is the batch's first offset, `first` the first that was wanted of it; `inside` is the
    last offset known to be in the batch, `outside` the first known to be behind it.
    """

    base: int
    first: int
    inside: int
    step: int = 1
    outside: int | None = None

    def next_probe(self, end: int) -> int | None:
        """Where to read next, at most `end`; None once `outside` is the end of the batch."""
        if self.outside is None:
            probe = min(self.inside + self.step, end)
            self.step *= 2
            return probe
        if self.outside - self.inside == 1:
            return None
        return (self.inside + self.outside) // 2


@dataclass(frozen=True, slots=True)
class PassedOver:
    """A batch that was skipped: the record that stands for it, and the offset behind it."""

    record: Record
    end: int


class BadBatches:
    """The searches of one reader. `seek` moves a partition, `end` gives its last known end."""

    def __init__(
        self, seek: Callable[[TopicPartition, int], None], end: Callable[[TopicPartition], int]
    ) -> None:
        self._seek = seek
        self._end = end
        self._searches: dict[TopicPartition, BadBatch] = {}
        self._probes: dict[TopicPartition, int] = {}

    def forget(self) -> None:
        """The reader got a new assignment."""
        self._searches.clear()
        self._probes.clear()

    def failed(self, place: TopicPartition, base: int, position: int) -> PassedOver | None:
        """A batch that begins at `base` could not be read; `position` is what was wanted.

        Gives what stands for a batch once its end is known; until then what was read comes again.
        """
        search = self._searches.get(place)
        if search is None:
            search = self._searches[place] = BadBatch(base, position, position)
        elif search.base == base:
            search.inside = self._probes[place]
        else:
            search.outside = self._probes[place]
        return self._continue(place, search)

    def passed(self, place: TopicPartition) -> PassedOver | None:
        """Something could be read where the end of a batch is looked for; gives as `failed`."""
        search = self._searches[place]
        search.outside = self._probes[place]
        return self._continue(place, search)

    def searching(self, place: TopicPartition) -> bool:
        """Whether the end of a batch is looked for here."""
        return place in self._searches

    def _continue(self, place: TopicPartition, search: BadBatch) -> PassedOver | None:
        probe = search.next_probe(self._end(place))
        if probe is not None:
            self._probes[place] = probe
            self._seek(place, probe)
            return None
        end = search.inside + 1
        del self._searches[place], self._probes[place]
        self._seek(place, end)
        damage = f"the records up to offset {search.inside} are in a batch that cannot be read"
        record = Record(place.topic, place.partition, search.first, None, b"", (), 0, damage)
        return PassedOver(record, end)


def record_of(place: TopicPartition, offset: int, message: Message) -> Record:
    """The record of a message. Its `damage` names a value above 4 MiB or unreadable headers."""
    headers, damage = _headers(message)
    value = message.value() or b""
    if len(value) > MAX_VALUE_BYTES:
        damage = f"the value is above {MAX_VALUE_BYTES // 1024**2} MiB ({len(value)} bytes)"
        value = value[:_KEPT_VALUE_BYTES]
    return Record(
        place.topic,
        place.partition,
        offset,
        message.key(),
        value,
        headers,
        message.timestamp()[1],
        damage,
    )


def _headers(message: Message) -> tuple[Headers, str]:
    """The headers, or what is wrong with them: the client raises for a name that is not UTF-8."""
    try:
        pairs: list[tuple[str, Any]] = _headers_of(message) or []
    except (UnicodeDecodeError, SystemError):
        return (), "the name of a header is not UTF-8"
    return tuple((name, value or b"") for name, value in pairs), ""
