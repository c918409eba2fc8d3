"""One suite over both buses: what `gangline_bus.ports` promises, on Kafka and in memory."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from gangline_bus.kafka import KafkaBus
from gangline_bus.memory import Broker
from gangline_bus.ports import (
    Bus,
    BusError,
    Fenced,
    Note,
    OutRecord,
    Reader,
    Record,
    TopicPartition,
    TopicSettings,
)

HOUR_MS = 3_600_000
_clients = itertools.count()


@dataclass
class Side:
    """A bus implementation: how to connect one more process, and a topic name of this test."""

    connect: Callable[[], Bus]
    topic: str
    in_memory: bool

    def create(self, partitions: int = 1, suffix: str = "") -> str:
        name = self.topic + suffix
        self.connect().create_topics([TopicSettings(name, partitions, HOUR_MS)])
        return name


@pytest.fixture(params=["memory", "kafka"])
def side(request: pytest.FixtureRequest) -> Iterator[Side]:
    topic = f"contract-{uuid.uuid4().hex[:12]}"
    if request.param == "memory":
        broker = Broker()
        yield Side(lambda: broker.connect(f"client-{next(_clients)}"), topic, True)
        return
    kafka = request.getfixturevalue("kafka")
    opened: list[KafkaBus] = []

    def connect() -> KafkaBus:
        bus = KafkaBus(kafka.bootstrap, client=f"client-{next(_clients)}")
        opened.append(bus)
        return bus

    yield Side(connect, topic, False)
    for bus in opened:
        bus.close()


def read_until(
    reader: Reader, done: Callable[[list[Record]], bool], rounds: int = 1000
) -> list[Record]:
    found: list[Record] = []
    for _ in range(rounds):
        if done(found):
            return found
        found += reader.poll(1000, 0.1)
    raise AssertionError(f"only {len(found)} records came")


def read_to_end(bus: Bus, topic: str, partition: int = 0) -> list[Record]:
    place = TopicPartition(topic, partition)
    # Waits until the markers of the last commit are written.
    bus.transactional_writer(f"{topic}-writer").close()
    end = bus.end_offsets([place])[place]
    reader = bus.reader("to-end")
    reader.assign({place: 0})
    found: list[Record] = []
    for _ in range(1000):
        if reader.positions()[place] >= end:
            reader.close()
            return found
        found += reader.poll(1000, 0.1)
    raise AssertionError(f"stuck at {reader.positions()[place]} of {end}")


def out(topic: str, value: str, key: str = "k", partition: int | None = 0) -> OutRecord:
    return OutRecord(topic, key.encode(), value.encode(), (("h", b"1"),), partition)


def values(records: list[Record]) -> list[str]:
    return [record.value.decode() for record in records]


def test_a_reader_knows_how_many_records_it_has_still_to_read(side: Side) -> None:
    topic = side.create()
    bus, place = side.connect(), TopicPartition(topic, 0)
    writer = bus.writer()
    for index in range(5):
        writer.send(out(topic, str(index)))
    assert writer.flush(60) == 0
    reader = bus.reader("behind")
    reader.assign({place: 0})
    first: list[Record] = []
    while not first:
        first = reader.poll(2, 0.1)
    assert reader.behind() == {place: 5 - len(first)}
    read_until(reader, lambda records: len(first) + len(records) >= 5)
    assert reader.behind() == {place: 0}


def test_records_of_a_key_keep_their_order_and_share_a_partition(side: Side) -> None:
    topic = side.create(partitions=4)
    bus = side.connect()
    writer = bus.writer()
    for index in range(200):
        writer.send(out(topic, str(index), key=f"job-{index % 7}", partition=None))
    assert writer.flush(60) == 0
    reader = bus.reader("order")
    reader.assign({TopicPartition(topic, p): 0 for p in range(4)})
    found = read_until(reader, lambda records: len(records) >= 200)
    by_key: dict[bytes | None, list[Record]] = {}
    for record in found:
        by_key.setdefault(record.key, []).append(record)
    assert len(by_key) == 7
    for records in by_key.values():
        assert len({record.partition for record in records}) == 1
        numbers = [int(record.value) for record in records]
        assert numbers == sorted(numbers)


def test_both_buses_choose_the_partition_that_java_chooses(side: Side) -> None:
    topic = side.create(partitions=4)
    bus = side.connect()
    writer = bus.writer()
    writer.send(out(topic, "x", key="job-17", partition=None))
    writer.flush(10)
    reader = bus.reader("java")
    reader.assign({TopicPartition(topic, p): 0 for p in range(4)})
    (record,) = read_until(reader, lambda records: len(records) >= 1)
    # What librdkafka and Java choose; test_murmur.py has the published vectors.
    assert record.partition == 3


def test_headers_key_and_value_arrive_as_they_were_sent(side: Side) -> None:
    topic = side.create()
    bus = side.connect()
    writer = bus.writer()
    headers = (("ce_id", b"1"), ("a", b"\x00\xff"), ("a", b"again"))
    writer.send(OutRecord(topic, None, b"\x00value", headers, 0))
    writer.flush(10)
    (record,) = read_to_end(bus, topic)
    assert (record.key, record.value, record.headers) == (None, b"\x00value", headers)


def test_delivery_is_reported(side: Side) -> None:
    topic = side.create()
    reports: list[BusError | None] = []
    writer = side.connect().writer()
    writer.send(out(topic, "a"), reports.append)
    assert writer.flush(60) == 0
    assert reports == [None]


def test_a_transaction_is_seen_whole_with_its_offsets(side: Side) -> None:
    topic, inputs = side.create(), side.create(partitions=2, suffix="-in")
    bus = side.connect()
    writer = bus.transactional_writer(f"{topic}-writer")
    places = {TopicPartition(inputs, 0): 5, TopicPartition(inputs, 1): 7}
    writer.commit([out(topic, "a"), out(topic, "b")], places, f"{topic}-group")
    assert values(read_to_end(bus, topic)) == ["a", "b"]
    assert bus.committed(f"{topic}-group", places) == places


def test_a_transaction_of_offsets_alone(side: Side) -> None:
    inputs = side.create(suffix="-in")
    bus = side.connect()
    writer = bus.transactional_writer(f"{inputs}-writer")
    place = TopicPartition(inputs, 0)
    writer.commit([], {place: 3}, f"{inputs}-group")
    assert bus.committed(f"{inputs}-group", [place]) == {place: 3}


def test_a_note_is_kept_with_a_transaction(side: Side) -> None:
    topic = side.create(partitions=2)
    bus = side.connect()
    place, group = TopicPartition(topic, 1), f"{topic}-notes"
    assert bus.note(group, place) == ""
    writer = bus.transactional_writer(f"{topic}-writer")
    text = '{"é": ["' + "x" * 3900 + '"]}'
    writer.commit([out(topic, "a")], {}, f"{topic}-group", Note(group, place, text))
    assert side.connect().note(group, place) == text
    writer.commit([], {}, f"{topic}-group")
    assert side.connect().note(group, place) == text
    writer.commit([], {TopicPartition(topic, 0): 1}, f"{topic}-group", Note(group, place, ""))
    assert side.connect().note(group, place) == ""


def test_unknown_offsets_are_none(side: Side) -> None:
    place = TopicPartition(side.create(), 0)
    assert side.connect().committed(f"{side.topic}-group", [place]) == {place: None}


def test_a_fenced_writer_commits_nothing(side: Side) -> None:
    topic = side.create()
    old_bus, new_bus = side.connect(), side.connect()
    old = old_bus.transactional_writer(f"{topic}-writer")
    old.commit([out(topic, "old")], {}, "g")
    new = new_bus.transactional_writer(f"{topic}-writer")
    with pytest.raises(Fenced):
        old.commit([out(topic, "zombie")], {TopicPartition(topic, 0): 99}, f"{topic}-group")
    new.commit([out(topic, "new")], {}, "g")
    assert values(read_to_end(new_bus, topic)) == ["old", "new"]
    place = TopicPartition(topic, 0)
    assert new_bus.committed(f"{topic}-group", [place]) == {place: None}


def test_after_a_failure_the_writer_refuses_to_go_on(side: Side) -> None:
    topic = side.create()
    bus = side.connect()
    old = bus.transactional_writer(f"{topic}-writer")
    side.connect().transactional_writer(f"{topic}-writer")
    for _ in range(2):
        with pytest.raises(BusError):
            old.commit([out(topic, "zombie")], {}, "g")
    assert values(read_to_end(bus, topic)) == []


def test_the_position_reaches_the_end_past_control_records(side: Side) -> None:
    topic = side.create()
    bus = side.connect()
    writer = bus.transactional_writer(f"{topic}-writer")
    for index in range(3):
        writer.commit([out(topic, str(index))], {}, "g")
    place = TopicPartition(topic, 0)
    assert values(read_to_end(bus, topic)) == ["0", "1", "2"]
    # Three records and three commit markers.
    assert bus.end_offsets([place])[place] == 6


def test_reading_goes_on_from_a_position(side: Side) -> None:
    topic = side.create()
    bus = side.connect()
    writer = bus.writer()
    for index in range(10):
        writer.send(out(topic, str(index)))
    writer.flush(10)
    place = TopicPartition(topic, 0)
    reader = bus.reader("on")
    reader.assign({place: 4})
    assert values(read_until(reader, lambda records: len(records) >= 6)) == list("456789")
    reader.assign({place: 9})
    assert values(read_until(reader, lambda records: len(records) >= 1)) == ["9"]


def test_a_partition_has_one_owner_and_moves_when_it_leaves(side: Side) -> None:
    topic = side.create()
    first_bus, second_bus = side.connect(), side.connect()
    first = first_bus.join(f"{topic}-election", topic)
    assert _owned_soon(first, {0})
    second = second_bus.join(f"{topic}-election", topic)
    for _ in range(10):
        # Both are served, as two processes would be; never do both own it.
        owners = [first.owned(0.1), second.owned(0.1)]
        assert sum(0 in owned for owned in owners) <= 1
    holder, other = (first, second) if 0 in first.owned(0.1) else (second, first)
    holder.close()
    assert _owned_soon(other, {0})
    other.close()


def test_a_missing_topic_is_named(side: Side) -> None:
    with pytest.raises(BusError, match=r"no such topic: .*missing"):
        side.connect().partitions(f"{side.topic}-missing")


def _owned_soon(member: object, wanted: set[int]) -> bool:
    return any(set(member.owned(0.2)) == wanted for _ in range(600))  # type: ignore[attr-defined]
