"""Reading from Kafka by assignment, and membership in groups that share out partitions."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

import structlog
from confluent_kafka import Consumer, KafkaError, Message
from confluent_kafka import TopicPartition as KafkaPlace

from gangline_bus.kafka_client import FENCED_CODES, translate
from gangline_bus.kafka_damage import BAD_BATCH_CODES, BadBatches, PassedOver, record_of
from gangline_bus.kafka_denials import DENIED_CODES, Denials, WeakConsumer
from gangline_bus.ports import Fenced, Record, TopicPartition

log = structlog.get_logger(__name__)
_FINAL_CODES = {KafkaError.UNKNOWN_TOPIC_OR_PART, *DENIED_CODES}


class KafkaReader:
    """`ports.Reader` by assignment, with positions that see past control records."""

    def __init__(self, settings: Mapping[str, Any], denials: Denials) -> None:
        self._denials = denials
        self._group = str(settings["group.id"])
        self._consumer = WeakConsumer(dict(settings))
        self._positions: dict[TopicPartition, int] = {}
        self._bad = BadBatches(self._seek, self._end)
        self._moved: set[TopicPartition] = set()

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        """Replace the assignment."""
        self._positions = dict(positions)
        self._bad.forget()
        self._consumer.assign(
            [KafkaPlace(at.topic, at.partition, offset) for at, offset in positions.items()]
        )

    def poll(self, max_records: int, timeout_s: float) -> list[Record]:
        """Wait for the first record, then take what has already arrived."""
        self._denials.renew(self._consumer)
        found: list[Record] = []
        deadline = time.monotonic() + timeout_s
        while not found:
            first = self._consumer.poll(max(0.0, deadline - time.monotonic()))
            if first is None:
                break
            self._take([first], found)
        while found and len(found) < max_records:
            more = self._consumer.consume(min(500, max_records - len(found)), 0)
            if not more:
                break
            self._take(more, found)
        return found

    def positions(self) -> dict[TopicPartition, int]:
        """Next offsets, as far as records and partition ends were seen."""
        return dict(self._positions)

    def behind(self) -> dict[TopicPartition, int]:
        """Up to the ends that the last answers of the broker named."""
        return {place: max(0, self._end(place) - at) for place, at in self._positions.items()}

    def close(self) -> None:
        """Close the connection."""
        self._consumer.close()

    def _take(self, messages: Iterable[Message], found: list[Record]) -> None:
        self._moved.clear()
        for message in messages:
            place = TopicPartition(str(message.topic()), int(message.partition() or 0))
            if place not in self._moved:  # else it was fetched before the seek
                self._take_one(place, message, found)

    def _take_one(self, place: TopicPartition, message: Message, found: list[Record]) -> None:
        error, offset = message.error(), int(message.offset() or 0)
        code = None if error is None else error.code()
        if error is not None and code not in {KafkaError._PARTITION_EOF, *BAD_BATCH_CODES}:
            if error.fatal() or code in _FINAL_CODES:
                raise self._denials.error(error, self._right(code, place))
            log.debug("kafka reader", error=error.str())
            return
        if place not in self._positions:
            return
        if code in BAD_BATCH_CODES:
            self._found_bad(place, self._bad.failed(place, offset, self._positions[place]), found)
        elif self._bad.searching(place):
            self._found_bad(place, self._bad.passed(place), found)
        elif error is not None:
            self._positions[place] = max(self._positions[place], offset)
        else:
            self._positions[place] = offset + 1
            found.append(record_of(place, offset, message))
            self._denials.let_in()

    def _right(self, code: int | None, place: TopicPartition) -> str:
        if code == KafkaError.GROUP_AUTHORIZATION_FAILED:
            return f"Read on the group {self._group}"
        return f"Read on the topic {place.topic}"

    def _found_bad(
        self, place: TopicPartition, passed: PassedOver | None, found: list[Record]
    ) -> None:
        if passed is not None:
            self._positions[place] = passed.end
            found.append(passed.record)

    def _seek(self, place: TopicPartition, offset: int) -> None:
        self._moved.add(place)
        self._consumer.seek(KafkaPlace(place.topic, place.partition, offset))

    def _end(self, place: TopicPartition) -> int:
        at = KafkaPlace(place.topic, place.partition)
        return int(self._consumer.get_watermark_offsets(at, cached=True)[1])


class KafkaMember:
    """`ports.Member`: subscribes, and pauses what it is given, since only ownership matters."""

    def __init__(self, settings: Mapping[str, Any], topic: str, denials: Denials) -> None:
        self._owned: set[int] = set()
        self._denials = denials
        self._group = str(settings["group.id"])
        self._consumer = WeakConsumer(dict(settings))
        self._consumer.subscribe(
            [topic], on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_revoke
        )

    def owned(self, timeout_s: float) -> frozenset[int]:
        """Serve the membership; raises Fenced when a newer process has the same instance id."""
        self._denials.renew(self._consumer)
        message = self._consumer.poll(timeout_s)
        error = message.error() if message is not None else None
        if error is not None and error.code() in DENIED_CODES:
            raise self._denials.error(error, f"Read on the group {self._group}")
        if error is not None and error.fatal():
            raise translate(error) if error.code() in FENCED_CODES else Fenced(error.str())
        return frozenset(self._owned)

    def close(self) -> None:
        """Leave the group."""
        self._consumer.close()

    def _on_assign(self, consumer: Consumer, places: list[KafkaPlace]) -> None:
        consumer.incremental_assign(places)
        consumer.pause(places)
        self._owned |= {place.partition for place in places}

    def _on_revoke(self, consumer: Consumer, places: list[KafkaPlace]) -> None:
        self._owned -= {place.partition for place in places}
        consumer.incremental_unassign(places)
