"""The CloudEvents codec: it round-trips, refuses with a reason, and other libraries read it."""

from __future__ import annotations

import json
import uuid
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cloudevents.core.bindings.kafka import KafkaMessage, from_binary, to_binary
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent
from hypothesis import given
from hypothesis import strategies as st

from gangline_bus.codec import UndecodableError, decode, encode
from gangline_bus.ports import OutRecord, Record
from gangline_schemas.catalog import Topic, event_types, topic_of
from gangline_schemas.envelope import Envelope, LogPosition, derived_id
from gangline_schemas.events.requests import JobCancelRequested

NOW = datetime(2026, 11, 21, 8, 30, 0, 123456, tzinfo=UTC)
EVENT = JobCancelRequested(job_id="job-1", user="ada")
HEADERS = {
    "ce_specversion": b"1.0",
    "ce_id": b"1",
    "ce_source": b"/x",
    "ce_type": b"job.cancel.requested",
    "ce_subject": b"job-1",
}
TOPIC = "prefix.gangline.requests"
EXAMPLES = Path(__file__).parents[3] / "schemas" / "examples"
FAULTS = "prefix.gangline.faults"
POSITION = ("ce_ganglineshard", "ce_ganglineepoch", "ce_ganglineseq")
BEFORE_ALL = b'{"job_id": "j", "attempt": 1, "running_at": "0001-01-01T00:00:00+14:00"}'


def as_read(out: OutRecord) -> Record:
    return Record(out.topic, 0, 7, out.key, out.value, out.headers, 1_795_248_000_000)


def record(value: bytes = b'{"job_id": "job-1"}', **changes: bytes | None) -> Record:
    headers = {k: v for k, v in (HEADERS | changes).items() if v is not None}
    return Record(TOPIC, 0, 7, b"job-1", value, tuple(headers.items()), 1_795_248_000_000)


def headers_of(*more: tuple[str, bytes], at_ms: int = 0, topic: str = TOPIC) -> Record:
    headers = (*HEADERS.items(), *more)
    return Record(topic, 0, 7, b"job-1", b'{"job_id": "job-1"}', headers, at_ms)


@pytest.mark.parametrize("position", [None, LogPosition(0, 3, 17)])
@pytest.mark.parametrize("traceparent", [None, "00-" + "1" * 32 + "-" + "2" * 16 + "-01"])
def test_round_trip(position: LogPosition | None, traceparent: str | None) -> None:
    envelope = Envelope("id", "/gangline/test", NOW, "job-1", EVENT, traceparent, position)
    assert decode(as_read(encode(envelope, topic=TOPIC))) == envelope


def test_the_cloudevents_package_reads_what_we_write() -> None:
    out = encode(Envelope("id", "/gangline/test", NOW, "job-1", EVENT), topic=TOPIC)
    message = KafkaMessage(headers=dict(out.headers), key=out.key, value=out.value)
    event = from_binary(message, JSONFormat(), CloudEvent)
    assert event.get_id() == "id"
    assert event.get_type() == "job.cancel.requested"
    assert event.get_subject() == "job-1"
    assert event.get_time() == NOW
    data = event.get_data()
    assert (json.loads(data) if isinstance(data, bytes | str) else data) == EVENT.data()


def test_we_read_what_the_cloudevents_package_writes() -> None:
    attributes = {
        "id": "77",
        "source": "https://other.example/ci",
        "type": "job.cancel.requested",
        "specversion": "1.0",
        "subject": "job-1",
        "time": NOW,
        "datacontenttype": "application/json",
    }
    message = to_binary(CloudEvent(attributes=attributes, data=EVENT.data()), JSONFormat())
    raw = tuple((name, value) for name, value in message.headers.items())
    value = message.value if isinstance(message.value, bytes) else message.value.encode()
    envelope = decode(Record(TOPIC, 0, 0, None, value, raw, 0))
    assert (envelope.id, envelope.time, envelope.data) == ("77", NOW, EVENT)


def test_without_ce_time_the_records_time_counts() -> None:
    assert decode(record()).time == datetime.fromtimestamp(1_795_248_000, tz=UTC)


def test_unknown_fields_are_ignored_by_consumers() -> None:
    assert decode(record(b'{"job_id": "job-1", "added_later": 1}')).data.type == EVENT.type


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (record(ce_id=None), "ce_id is missing"),
        (record(ce_specversion=b"0.3"), "ce_specversion must be 1.0"),
        (record(ce_type=b"job.exploded"), "not a published type"),
        (record(ce_time=b"yesterday"), "ce_time is not"),
        (record(ce_time=b"2026-11-21T08:00:00"), "ce_time is not"),
        (record(ce_time=b"0001-01-01T00:00:00+14:00"), "ce_time is not"),
        (record(ce_subject=b"\xff"), "not UTF-8"),
        (record(ce_subject=b"x" * 2000), "above 1 KiB"),
        (record(ce_ganglineseq=b"1"), "log position"),
        (record(**dict.fromkeys(POSITION, "²".encode())), "log position"),
        (record(b"{}"), "job_id: is missing"),
        (record(b"not json"), "Invalid JSON"),
        (
            replace(record(BEFORE_ALL, ce_type=b"gang.running"), topic=FAULTS),
            "running_at: must lie in the years 1970 to",
        ),
        (headers_of(at_ms=-(10**17)), "the record's own time is not in the years 1970"),
        (headers_of(at_ms=2**62), "the record's own time is not in the years 1970"),
        (headers_of(("CE_ID", b"2")), "the header CE_ID is there twice"),
        (headers_of(*[(f"x{n}", b"") for n in range(60)]), "more than 64 headers"),
        (replace(record(), damage="torn"), "torn"),
    ],
)
def test_what_is_wrong_is_said(bad: Record, reason: str) -> None:
    with pytest.raises(UndecodableError) as caught:
        decode(bad)
    assert reason in caught.value.reason


@pytest.mark.parametrize("kind", sorted(event_types()))
def test_a_type_is_an_event_of_its_own_topic_alone(kind: str) -> None:
    example = (EXAMPLES / f"{kind}.json").read_bytes()
    headers = tuple((HEADERS | {"ce_type": kind.encode()}).items())
    for topic in Topic:
        raw = Record(f"prefix.{topic.value}", 0, 7, None, example, headers, 0)
        reason = refusal(raw)
        if topic is topic_of(kind):
            assert reason is None
        else:
            assert reason == (
                f"ce_type {kind} belongs to {topic_of(kind).value}, not to this topic"
            )


def test_whatever_a_validator_raises_is_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(raw: bytes) -> JobCancelRequested:
        raise OverflowError(raw)

    monkeypatch.setattr(JobCancelRequested, "decode", fail)
    assert refusal(record()) == "job.cancel.requested: cannot be read (OverflowError)"


def test_a_long_name_of_a_field_is_cut_in_the_reason() -> None:
    spec = b'{"job_id": "a", "spec": {"env": {"' + b"K" * 2_000_000 + b'": 5}}}'
    reason = refusal(record(spec, ce_type=b"job.submitted"))
    assert reason is not None
    assert len(reason) < 2000


def test_the_reason_never_holds_a_value() -> None:
    planted = b"hf_" + b"a" * 34
    with pytest.raises(UndecodableError) as caught:
        decode(record(b'{"job_id": "job-1", "user": ["' + planted + b'"]}'))
    assert planted.decode() not in caught.value.reason + str(caught.value.fields)


@given(st.binary(max_size=200), st.dictionaries(st.sampled_from(list(HEADERS)), st.binary()))
def test_any_bytes_are_an_event_or_a_clear_refusal(value: bytes, headers: dict[str, bytes]) -> None:
    assert refusal(record(value, **headers)) != ""


def refusal(raw: Record) -> str | None:
    try:
        decode(raw)
    except UndecodableError as error:
        return error.reason
    return None


def test_derived_ids_are_stable() -> None:
    assert derived_id("scheduler", "x", 0) == derived_id("scheduler", "x", 0)
    assert derived_id("a", "bc") != derived_id("ab", "c")


def test_derived_ids_are_uuids_of_version_5() -> None:
    namespace = uuid.UUID("6f1c2b4e-6c1a-5d0e-9a54-9d2f4c1a7b3e")
    for number in range(64):  # every variant and version digit that the hash may have there
        assert derived_id("é", number) == str(uuid.uuid5(namespace, f"é\x1f{number}"))
