"""What of its inputs a loop has taken."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from gangline_bus.intake import Intake
from gangline_bus.memory import Broker
from gangline_bus.ports import OutRecord, TopicPartition, TopicSettings

START = datetime(2026, 11, 21, 8, 0, tzinfo=UTC)
FIRST, SECOND = TopicPartition("beats", 0), TopicPartition("beats", 1)


def test_each_partition_says_until_when_it_was_read() -> None:
    bus = Broker().connect("a")
    bus.create_topics([TopicSettings("beats", 2, -1), TopicSettings("other", 1, -1)])
    intake = Intake(bus.reader("r"))
    intake.assign({FIRST: 0, SECOND: 0, TopicPartition("other", 0): 0})

    def written(*places: TopicPartition) -> None:
        for place in places:
            bus.writer().send(OutRecord(place.topic, None, b"x", (), place.partition))

    def until_s(second: int, take: int) -> tuple[float, ...]:
        """Of both partitions, after so many were taken."""
        for _ in range(take):
            intake.fill(1, 0.0)
            assert intake.next() is not None
            intake.take()
        now = START + timedelta(seconds=second)
        until = intake.read_until(now, {"beats"})
        assert until.keys() == {FIRST, SECOND}
        return tuple((until[place] - START).total_seconds() for place in (FIRST, SECOND))

    assert until_s(0, take=0) == (0, 0)
    written(FIRST, SECOND)
    assert until_s(10, take=2) == (10, 10)
    written(FIRST, FIRST, SECOND, TopicPartition("other", 0))
    assert until_s(20, take=0) == (10, 10), "the ends that are known at 20 s are not reached"
    written(FIRST)
    assert until_s(30, take=3) == (30, 10), "the second is not read up to 20 s"
    assert until_s(40, take=1) == (40, 40), "of other topics nothing counts"
    written(FIRST)
    assert until_s(50, take=0) == (40, 50)
    written(FIRST, FIRST)
    assert until_s(60, take=1) == (50, 60), "what came until 50 s is read, and no more"
    assert until_s(70, take=1) == (50, 70)
    assert until_s(80, take=1) == (80, 80)
    intake.assign({FIRST: 0, SECOND: 0})
    assert until_s(90, take=0) == (90, 90), "counted from the first call after an assignment"
