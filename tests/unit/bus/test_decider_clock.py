"""The decider loop when its machine's clock is set back."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from gangline_bus.decider import DeciderLoop
from gangline_bus.decision import BaseDecider, Decision, Input, Tick
from gangline_bus.loop_settings import LoopSettings
from gangline_bus.memory import Broker
from gangline_bus.topics import TopicNames, create_topics
from gangline_schemas.catalog import Topic


class Ticks(BaseDecider[None, None]):
    """Counts its Ticks."""

    name = "ticks"
    log = Topic.QUOTA
    inputs: tuple[Topic, ...] = (Topic.REQUESTS,)
    seen = 0

    def initial(self) -> None:
        return None

    def decide(self, state: None, soft: None, item: Input, now: datetime) -> Sequence[Decision]:
        self.seen += isinstance(item, Tick)
        return []

    def evolve(self, state: None, decision: Decision, at: datetime) -> None:
        return None

    def check(self, state: None) -> list[str]:
        return []


def test_ticks_go_on_when_the_clock_is_set_back() -> None:
    bus = Broker().connect("one")
    create_topics(bus, TopicNames())
    decider, now = Ticks(), datetime(2026, 1, 1, tzinfo=UTC)
    loop = DeciderLoop(bus, decider, lambda: now, settings=LoopSettings(tick_interval_s=1.0))
    loop.take_over()
    loop.cycle(0.0)
    now -= timedelta(hours=1)
    loop.cycle(0.0)
    loop.cycle(0.0)
    assert decider.seen == 2
    now += timedelta(seconds=1)
    loop.cycle(0.0)
    assert decider.seen == 3
