"""A clock that is two days ahead for one tick ends no job: the loop with the services' clock."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from gangline_bus.codec import encode
from gangline_bus.decider import DeciderLoop
from gangline_bus.memory import Broker
from gangline_bus.topics import TopicNames, create_topics
from gangline_scheduler.core.decide import Scheduler
from gangline_schemas.base import Event
from gangline_schemas.catalog import topic_of
from gangline_schemas.envelope import Envelope
from gangline_schemas.events.quota import JobAdmitted, TeamConfigured
from gangline_schemas.events.workers import NodeJoined, WorkerStarted
from gangline_service.steady_clock import SteadyClock
from support.builders.deciding import START, spec, team
from support.builders.scheduler import node

NAMES = TopicNames("t.")


class Machine:
    """A deciding service on a machine whose clock can be wrong."""

    def __init__(self, decider: Any) -> None:
        self.real, self.off = START, timedelta(0)
        self.broker = Broker()
        self.bus = self.broker.connect("outside")
        create_topics(self.bus, NAMES)
        clock = SteadyClock(self._wall, self._elapsed_s)
        self.loop = DeciderLoop(self.broker.connect("service"), decider, clock, names=NAMES)
        self.loop.take_over()
        self._published = 0

    def _wall(self) -> datetime:
        return self.real + self.off

    def _elapsed_s(self) -> float:
        return (self.real - START).total_seconds()

    def publish(self, event: Event) -> None:
        self._published += 1
        envelope = Envelope(
            id=f"e{self._published}", source="/t", time=self.real, subject="s", data=event
        )
        topic = NAMES.name(topic_of(event.type))
        self.bus.writer().send(encode(envelope, topic=topic, key="0"))
        self.cycle()

    def cycle(self, after: timedelta = timedelta(seconds=1), off: timedelta | None = None) -> int:
        self.real += after
        self.off = off or timedelta(0)
        return self.loop.cycle(0.0)


@pytest.fixture
def scheduler() -> Machine:
    machine = Machine(Scheduler())
    machine.publish(TeamConfigured(config=team("nlp", limit=8)))
    machine.publish(NodeJoined(node=node("n1", 4)))
    wanted = spec("nlp", 1, max_runtime_hours=24)
    machine.publish(JobAdmitted(job_id="a", spec=wanted, user="ada", submitted_at=START))
    machine.publish(
        WorkerStarted(job_id="a", attempt=1, rank=0, node_id="n1", incarnation="i1", pid=1)
    )
    return machine


def test_no_job_reaches_its_runtime(scheduler: Machine) -> None:
    scheduler.cycle(timedelta(hours=1))
    assert scheduler.cycle(off=timedelta(days=2)) == 0
    assert scheduler.cycle() == 0
    gang = scheduler.loop.state.jobs["a"].gang
    assert gang is not None
    assert gang.stop is None


def test_a_job_reaches_it_when_the_time_has_really_passed(scheduler: Machine) -> None:
    for _ in range(30):
        scheduler.cycle(timedelta(hours=1))
    assert "a" not in scheduler.loop.state.jobs
