"""What a process reports of itself, and that it ends with a report that it stops."""

from __future__ import annotations

import threading
from datetime import UTC, datetime

from gangline_bus.codec import receive
from gangline_bus.memory import Broker
from gangline_bus.ports import OutRecord, TopicPartition
from gangline_bus.snapshot import SnapshotHeader
from gangline_bus.topics import TopicNames, create_topics
from gangline_schemas.catalog import Topic
from gangline_schemas.events.parts import PartVitals
from gangline_schemas.features import RELEASE
from gangline_service.health import Health
from gangline_service.vitals import Vitals, publish_vitals

AT = datetime(2026, 11, 21, 10, tzinfo=UTC)
NAMES = TopicNames("p.")


def header(shard: int, seq: int) -> SnapshotHeader:
    return SnapshotHeader(
        format=2, state=1, form="f", service="quota", shard=shard, next_seq=seq, writer_epoch=1,
        offset=0, last="",
    )  # fmt: skip


def test_a_process_reports_its_checks_unread_records_and_snapshots() -> None:
    now_s = [0.0]
    health, vitals = Health(clock=lambda: now_s[0]), Vitals(lambda: AT)
    health.set("bus", ok=False, detail="password=hunter2 was refused")
    vitals.reads("shard 0", lambda: {TopicPartition("p.gangline.requests", 1): 7})
    vitals.wrote(header(0, 40))
    vitals.wrote(header(0, 80))
    now_s[0] = 31.0
    event = vitals.event("quota", "quota-0", health, AT, NAMES)
    assert (event.part, event.instance, event.release) == ("quota", "quota-0", RELEASE)
    assert (event.ready, event.stalled, event.beat_age_s) == (False, True, 31.0)
    assert "hunter2" not in event.checks[0].detail
    (unread,) = event.unread
    assert (unread.topic, unread.partition, unread.records) == ("gangline.requests", 1, 7)
    (snapshot,) = event.snapshots
    assert (snapshot.seq, snapshot.written_at) == (80, AT)


def test_a_reader_is_asked_at_most_every_two_seconds() -> None:
    vitals, asked = Vitals(), []

    def behind() -> dict[TopicPartition, int]:
        asked.append(1)
        return {}

    for _ in range(5):
        vitals.reads("tail", behind)
    assert asked == [1]


def test_the_last_report_says_that_the_process_stops() -> None:
    made = Broker()
    bus = made.connect("process")
    create_topics(bus, NAMES)
    stopping, health = threading.Event(), Health()
    health.set("http", ok=True)
    stopping.set()
    publish_vitals(bus, NAMES, "gateway", "g-1", health, Vitals(), stopping).join()
    (record,) = made.dump(f"p.{Topic.VITALS}")
    event = receive(record).envelope.data
    assert isinstance(event, PartVitals)
    assert (event.ready, event.stopping, record.key) == (True, True, b"gateway/g-1")


def test_a_bus_reader_knows_how_far_it_is_behind() -> None:
    made = Broker()
    bus = made.connect("process")
    create_topics(bus, NAMES)
    place = TopicPartition("p.gangline.admin", 0)
    reader, writer = bus.reader("r"), bus.writer()
    reader.assign({place: 0})
    for value in (b"1", b"2", b"3"):
        writer.send(OutRecord(place.topic, b"k", value, partition=0))
    assert len(reader.poll(1, 0)) == 1
    assert reader.behind() == {place: 2}
