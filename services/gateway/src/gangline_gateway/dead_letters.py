"""Reads dead letters from Kafka: how many there are, and pages of them without secrets.

A page merges the newest records of all topics. Transactions leave gaps in the offsets of a topic,
one for each record at most, so a page of n records reads the last 2n offsets of each topic.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import structlog

from gangline_bus.ports import Bus, BusError, Record, TopicPartition
from gangline_bus.topics import TopicNames
from gangline_gateway.problems import invalid, unavailable
from gangline_schemas.api.health import DeadLetter, DeadLetterCount, DeadLetterPage
from gangline_schemas.catalog import Topic, catalog
from gangline_schemas.secrets import REDACTED
from gangline_service.redaction import redact_text, redact_value

log = structlog.get_logger(__name__)

SHOWN_CHARS = 16_384
_READ_S = 5.0
_COUNTS_S = 5.0
_CURSOR = re.compile(r"([a-z-]{1,40})\.(\d{1,18})", re.ASCII)
_DIGITS = re.compile(r"\d{1,18}", re.ASCII)
_ENV_TEXT = re.compile(r"(['\"]?env['\"]?\s*[:=]\s*)\{[^}]*\}?")
TOPICS = tuple(topic for topic, entry in catalog().items() if not entry.compacted)
"""Topics that have dead letters."""


@dataclass
class DeadLetters:
    """The dead letters of all topics; every method may be called from any thread, one at a time."""

    connect: Callable[[], Bus]
    names: TopicNames
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _bus: Bus | None = None
    _counted: tuple[float, list[DeadLetterCount]] | None = None

    def counts(self) -> list[DeadLetterCount]:
        """Topics that have some; at most five seconds old. Raises a 503 problem."""
        with self._lock:
            if self._counted is not None and time.monotonic() - self._counted[0] < _COUNTS_S:
                return self._counted[1]
            starts, ends = self._asked(self._bounds)
            found = [
                DeadLetterCount(topic=topic.value, records=ends[at] - starts[at])
                for topic, at in self._places(TOPICS).items()
                if ends[at] > starts[at]
            ]
            self._counted = time.monotonic(), found
            return found

    def page(
        self, topics: Sequence[Topic], *, limit: int, cursor: str | None = None
    ) -> DeadLetterPage:
        """The newest first. Raises a 503 problem, and 422 for a cursor of nothing."""
        places = self._places(topics or TOPICS)
        before = _read_cursor(cursor)
        with self._lock:
            starts, ends = self._asked(self._bounds)
            until = {at: min(ends[at], before.get(topic, ends[at])) for topic, at in places.items()}
            windows = {
                at: (max(starts[at], until[at] - 2 * limit), until[at]) for at in places.values()
            }
            records = self._asked(lambda bus: _read(bus, windows))
        records.sort(key=lambda one: (one.timestamp_ms, one.topic, one.offset), reverse=True)
        taken, left = records[:limit], records[limit:]
        after = _next_ends(windows, taken, left)
        more = any(after[at] > starts[at] for at in after)
        return DeadLetterPage(
            dead_letters=[dead_letter(record, self.names) for record in taken],
            cursor=_cursor({topic: after[at] for topic, at in places.items()}) if more else None,
        )

    def _places(self, topics: Sequence[Topic]) -> dict[Topic, TopicPartition]:
        return {
            topic: TopicPartition(self.names.dlq(self.names.name(topic)), 0) for topic in topics
        }

    def _bounds(self, bus: Bus) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
        places = list(self._places(TOPICS).values())
        return bus.start_offsets(places), bus.end_offsets(places)

    def _asked(self, question: Callable[[Bus], Any]) -> Any:
        try:
            if self._bus is None:
                self._bus = self.connect()
            return question(self._bus)
        except BusError as error:
            log.warning("dead letters are not read", error=str(error))
            raise unavailable("bus-away", "Kafka does not answer; try again") from None


def _read(bus: Bus, windows: Mapping[TopicPartition, tuple[int, int]]) -> list[Record]:
    """The records of these offsets; those that came within five seconds."""
    wanted = {at: window for at, window in windows.items() if window[0] < window[1]}
    if not wanted:
        return []
    reader = bus.reader("dead-letters")
    try:
        reader.assign({at: first for at, (first, _) in wanted.items()})
        found: list[Record] = []
        deadline = time.monotonic() + _READ_S
        while time.monotonic() < deadline:
            found += reader.poll(1000, 0.2)
            positions = reader.positions()
            if all(positions[at] >= end for at, (_, end) in wanted.items()):
                break
        return [record for record in found if record.offset < wanted[record.place][1]]
    finally:
        reader.close()


def _next_ends(
    windows: Mapping[TopicPartition, tuple[int, int]],
    taken: Sequence[Record],
    left: Sequence[Record],
) -> dict[TopicPartition, int]:
    """Before which offset the next page begins, of each topic."""
    ends = {at: first for at, (first, _) in windows.items()}
    for record in left:
        ends[record.place] = max(ends[record.place], record.offset + 1)
    return ends if taken else dict.fromkeys(windows, 0)


def dead_letter(record: Record, names: TopicNames) -> DeadLetter:
    """A record of a DLQ as answers show it: redacted, in printable characters."""
    headers = {name: (value or b"").decode(errors="replace") for name, value in record.headers}
    text = _text(record.value)
    size = _number(headers.get("gangline_dlq_value_bytes"))
    return DeadLetter(
        topic=headers.get("gangline_dlq_topic", record.topic).removeprefix(names.prefix),
        partition=_number(headers.get("gangline_dlq_partition")),
        offset=_number(headers.get("gangline_dlq_offset")),
        dead_letter=record.offset,
        refused_at=datetime.fromtimestamp(record.timestamp_ms / 1000, UTC),
        type=_header(headers, "ce_type"),
        source=_header(headers, "ce_source"),
        subject=_header(headers, "ce_subject"),
        reason=_header(headers, "gangline_dlq_error"),
        trace=_header(headers, "gangline_dlq_trace"),
        size_bytes=size or len(record.value),
        message=text[:SHOWN_CHARS],
        cut=len(text) > SHOWN_CHARS or bool(size),
    )


def _text(value: bytes) -> str:
    """The value without credentials and without values of environment variables."""
    text = value.decode(errors="replace")
    try:
        redacted = redact_value(_without_env(json.loads(text)))
    except (ValueError, RecursionError):
        return _printable(redact_text(_ENV_TEXT.sub(rf"\1{{{REDACTED}}}", text)))
    return _printable(json.dumps(redacted, indent=2, ensure_ascii=False))


def _without_env(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: dict.fromkeys(item, REDACTED)
            if key == "env" and isinstance(item, dict)
            else _without_env(item)
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [_without_env(item) for item in value]
    return value


def _header(headers: Mapping[str, str], name: str) -> str:
    return _printable(redact_text(headers.get(name, "")))


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() or char in "\n\t" else "\ufffd" for char in text)


def _number(text: str | None) -> int:
    """0 for what is none: senders may have set headers of these names."""
    return int(text) if text is not None and _DIGITS.fullmatch(text) else 0


def _cursor(ends: Mapping[Topic, int]) -> str:
    return "_".join(f"{topic.value.removeprefix('gangline.')}.{end}" for topic, end in ends.items())


def _read_cursor(text: str | None) -> dict[Topic, int]:
    found: dict[Topic, int] = {}
    for part in text.split("_") if text else ():
        matched = _CURSOR.fullmatch(part)
        topic = next((t for t in TOPICS if matched and t == f"gangline.{matched[1]}"), None)
        if matched is None or topic is None:
            raise invalid("cursor", "must be the cursor of an earlier page")
        found[topic] = int(matched[2])
    return found
