"""What of its inputs a loop has taken."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from gangline_bus.intake import Intake
from gangline_bus.memory import Broker
from gangline_bus.ports import OutRecord, TopicPartition, TopicSettings

START = datetime(2026, 11, 21, 8, 0, tzinfo=UTC)
FIRST, SECOND = TopicPartition("beats", 0), TopicPartition("beats", 1)


def test_a_partition_that_is_behind_says_until_when_all_were_read() -> None:
    bus = Broker().connect("a")
    bus.create_topics([TopicSettings("beats", 2, -1), TopicSettings("other", 1, -1)])
    intake = Intake(bus.reader("r"))
    intake.assign({FIRST: 0, SECOND: 0, TopicPartition("other", 0): 0})

    def written(*places: TopicPartition) -> None:
        for place in places:
            bus.writer().send(OutRecord(place.topic, None, b"x", (), place.partition))

    def until_s(second: int, take: int) -> float:
        """After so many were taken."""
        for _ in range(take):
            intake.fill(1, 0.0)
            assert intake.next() is not None
            intake.take()
        now = START + timedelta(seconds=second)
        return (intake.read_until(now, {"beats"}) - START).total_seconds()

    assert until_s(0, take=0) == 0
    written(FIRST, SECOND)
    assert until_s(10, take=2) == 10
    written(FIRST, FIRST, SECOND, TopicPartition("other", 0))
    assert until_s(20, take=0) == 10, "the end that is known at 20 s is not reached"
    written(FIRST)
    assert until_s(30, take=3) == 10, "one partition is read up to 30 s, the other is not"
    assert until_s(40, take=1) == 40, "of other topics nothing counts"
    written(FIRST)
    assert until_s(50, take=0) == 40
    written(FIRST, FIRST)
    assert until_s(60, take=1) == 50, "what came until 50 s is read, and no more"
    assert until_s(70, take=1) == 50
    assert until_s(80, take=1) == 80
    intake.assign({FIRST: 0, SECOND: 0})
    assert until_s(90, take=0) == 90, "counted from the first call after an assignment"
