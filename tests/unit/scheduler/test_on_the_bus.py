"""Quota and scheduler together on a bus: a submission becomes a gang; a successor takes over."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

import pytest

from builders_deciding import START, every, spec, team
from builders_scheduler import node, states
from gangline_bus.codec import decode, encode
from gangline_bus.decider import DeciderLoop
from gangline_bus.memory import Broker, MemoryBus
from gangline_bus.ports import BusError
from gangline_bus.topics import TopicNames, create_topics
from gangline_quota.app import publish_teams
from gangline_quota.decide import Quota
from gangline_quota.state import State as QuotaState
from gangline_quota.state import fingerprint as quota_fingerprint
from gangline_scheduler.decide import Scheduler
from gangline_scheduler.state import State, fingerprint
from gangline_schemas.base import Event
from gangline_schemas.catalog import Topic, topic_of
from gangline_schemas.envelope import Envelope
from gangline_schemas.events.quota import RequestRefused, TeamConfigured, UsageCharged
from gangline_schemas.events.requests import JobCancelRequested, JobSubmitted
from gangline_schemas.events.scheduling import GangAllocated
from gangline_schemas.events.workers import NodeJoined, WorkerExited, WorkerStarted

NAMES = TopicNames("t.")


class Town:
    """One broker with a quota service, a scheduler and whoever publishes."""

    def __init__(self) -> None:
        self.broker = Broker()
        self.now = START
        self.bus = self.broker.connect("outside")
        create_topics(self.bus, NAMES)
        self._processes = 0
        self._published = 0
        self.quota = self.start_quota()
        self.scheduler = self.start_scheduler()

    def clock(self) -> datetime:
        return self.now

    def start_quota(self) -> DeciderLoop[QuotaState]:
        loop = DeciderLoop(self._connect(), Quota(), self.clock, names=NAMES)
        loop.take_over()
        return loop

    def start_scheduler(self) -> DeciderLoop[State]:
        loop = DeciderLoop(self._connect(), Scheduler(), self.clock, names=NAMES)
        loop.take_over()
        return loop

    def publish(self, subject: str, event: Event) -> None:
        self._published += 1
        envelope = Envelope(f"p{self._published}", "/t", self.now, subject, event)
        writer = self.bus.writer()
        writer.send(encode(envelope, topic=NAMES.name(topic_of(event.type))))
        writer.flush(1)

    def settle(self) -> None:
        for _ in range(6):
            self.now += timedelta(seconds=1)
            self.quota.cycle(0)
            self.scheduler.cycle(0)

    def log(self, topic: Topic) -> list[Event]:
        return [decode(record).data for record in self.broker.dump(NAMES.name(topic))]

    def _connect(self) -> MemoryBus:
        self._processes += 1
        return self.broker.connect(f"process-{self._processes}")


@pytest.fixture
def town() -> Iterator[Town]:
    town = Town()
    publish_teams(town.bus, NAMES, (team("nlp", limit=8),), town.now)
    town.publish("n1", NodeJoined(node=node(gpus=2)))
    town.settle()
    yield town
    assert fingerprint(town.start_scheduler().state) == fingerprint(town.scheduler.state)
    assert quota_fingerprint(town.start_quota().state) == quota_fingerprint(town.quota.state)


def rank(job_id: str, number: int, attempt: int = 1) -> dict[str, object]:
    where = {"node_id": "n1", "incarnation": "i1"}
    return {"job_id": job_id, "attempt": attempt, "rank": number} | where


def test_a_submission_runs_and_is_charged(town: Town) -> None:
    town.publish("a", JobSubmitted(job_id="a", spec=spec(gpus=2)))
    town.settle()
    for number in range(2):
        town.publish("a", WorkerStarted.model_validate(rank("a", number) | {"pid": 1}))
        town.publish("a", WorkerExited.model_validate(rank("a", number) | {"reason": "finished"}))
    town.settle()

    log = town.log(Topic.SCHEDULING)
    assert states(log) == ["pending", "scheduled", "initializing", "running", "succeeded"]
    charged = every(town.log(Topic.QUOTA), UsageCharged)
    assert [(item.job_id, item.gpus) for item in charged] == [("a", 2)]
    assert town.quota.state.active == {}


def test_a_cancel_that_follows_at_once_never_overtakes_its_job(town: Town) -> None:
    town.publish("a", JobSubmitted(job_id="a", spec=spec()))
    town.publish("a", JobCancelRequested(job_id="a"))
    town.settle()

    assert states(town.log(Topic.SCHEDULING))[-1] == "cancelled"
    assert every(town.log(Topic.QUOTA), RequestRefused) == []


def test_a_successor_goes_on_where_the_fenced_one_was(town: Town) -> None:
    town.publish("a", JobSubmitted(job_id="a", spec=spec(gpus=2)))
    town.settle()
    old, town.scheduler = town.scheduler, town.start_scheduler()
    town.publish("b", JobSubmitted(job_id="b", spec=spec(gpus=2)))
    town.settle()

    town.publish("a", JobCancelRequested(job_id="a"))
    town.settle()
    with pytest.raises(BusError):
        old.cycle(0)

    gangs = every(town.log(Topic.SCHEDULING), GangAllocated)
    assert [(gang.job_id, gang.attempt) for gang in gangs] == [("a", 1), ("b", 1)]


def test_the_teams_file_read_again_changes_nothing(town: Town) -> None:
    publish_teams(town.bus, NAMES, (team("nlp", limit=8),), town.now)
    town.settle()

    assert len(every(town.log(Topic.QUOTA), TeamConfigured)) == 1
