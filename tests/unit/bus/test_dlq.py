"""Refused records: what is kept of them, and that too many are counted and end no process."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from gangline_bus.codec import UndecodableError
from gangline_bus.dlq import DlqLimit, refused_record
from gangline_bus.kafka_client import PRODUCER
from gangline_bus.ports import OutRecord, Record

NOW = datetime(2026, 1, 1, tzinfo=UTC)
NO = UndecodableError("no")


def record(topic: str = "gangline.requests", **changes: object) -> Record:
    fields: dict[str, object] = {"key": b"k", "value": b"v", "headers": ()} | changes
    return Record(topic, 0, 1, timestamp_ms=0, **fields)  # type: ignore[arg-type]


def size(out: OutRecord) -> int:
    named = sum(len(name.encode()) + len(value) for name, value in out.headers)
    return len(out.key or b"") + len(out.value) + named


def test_the_message_is_kept_as_it_was() -> None:
    out = refused_record(record(headers=(("a", b"1"),)), NO, dlq="d", trace="decide.py:3 in f")
    assert (out.topic, out.key, out.value) == ("d", b"k", b"v")
    assert dict(out.headers) == {
        "a": b"1",
        "gangline_dlq_error": b"no",
        "gangline_dlq_topic": b"gangline.requests",
        "gangline_dlq_partition": b"0",
        "gangline_dlq_offset": b"1",
        "gangline_dlq_trace": b"decide.py:3 in f",
    }


def test_whatever_is_refused_the_bus_takes_it() -> None:
    huge = 60_000_000
    bad = UndecodableError("\ud800" * huge)
    headers = (("h" * huge, b""), ("x", bytes(huge)), *((f"n{n}", bytes(900)) for n in range(9999)))
    out = refused_record(record(key=bytes(huge), value=bytes(huge), headers=headers), bad, dlq="d")
    assert size(out) < int(PRODUCER["message.max.bytes"]) / 2
    assert dict(out.headers)["gangline_dlq_value_bytes"] == str(huge).encode()


def test_beyond_the_limit_records_of_that_topic_are_counted_and_not_kept() -> None:
    limit = DlqLimit(3, timedelta(hours=1))
    assert [limit.keeps(record(), NO, NOW) for _ in range(5)] == [True] * 3 + [False] * 2
    assert limit.keeps(record("gangline.workers"), NO, NOW)
    assert not limit.keeps(record(), NO, NOW + timedelta(minutes=59))
    assert limit.keeps(record(), NO, NOW + timedelta(minutes=61))


def test_a_clock_that_was_ahead_does_not_close_the_dlq() -> None:
    limit = DlqLimit(1, timedelta(hours=1))
    assert limit.keeps(record(), NO, NOW + timedelta(days=300))
    assert limit.keeps(record(), NO, NOW)
