"""Quota and scheduler together on a bus: a submission becomes a gang; a successor takes over."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

import pytest

from gangline_bus.codec import decode, encode
from gangline_bus.decider import DeciderLoop
from gangline_bus.memory import Broker, MemoryBus
from gangline_bus.ports import BusError
from gangline_bus.topics import TopicNames, create_topics
from gangline_quota.core.decide import Quota
from gangline_quota.core.snapshot import fingerprint as quota_fingerprint
from gangline_quota.core.state import State as QuotaState
from gangline_quota.service.app import publish_teams
from gangline_scheduler.core.decide import Scheduler
from gangline_scheduler.core.snapshot import fingerprint
from gangline_scheduler.core.state import State
from gangline_schemas.base import Event
from gangline_schemas.catalog import Topic, topic_of
from gangline_schemas.envelope import Envelope
from gangline_schemas.events.admin import (
    NodeDrainRequested,
    SnapshotApprovalRequested,
    TeamConfigureRequested,
    TeamsConfigureRequested,
)
from gangline_schemas.events.quota import (
    CancelAdmitted,
    JobAdmitted,
    RequestRefused,
    TeamConfigured,
    UsageCharged,
)
from gangline_schemas.events.requests import JobCancelRequested, JobSubmitted
from gangline_schemas.events.scheduling import (
    GangAllocated,
    JobStateChanged,
    ReleaseReason,
)
from gangline_schemas.events.workers import NodeJoined, WorkerExited, WorkerStarted
from gangline_schemas.job import JobState
from support.builders.deciding import START, every, spec, team
from support.builders.gangs import gang_released
from support.builders.scheduler import node, states

NAMES = TopicNames("t.")


class Town:
    """One broker with a quota service, a scheduler and a publisher."""

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

    def publish(
        self,
        subject: str,
        event: Event,
        *,
        topic: Topic | None = None,
        ce_id: str | None = None,
        source: str = "/t",
    ) -> None:
        self._published += 1
        envelope = Envelope(ce_id or f"p{self._published}", source, self.now, subject, event)
        writer = self.bus.writer()
        writer.send(encode(envelope, topic=NAMES.name(topic or topic_of(event.type))))
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


FORGED = (
    TeamConfigured(config=team("evil", limit=10_000)),
    JobAdmitted(job_id="ghost", spec=spec("evil", 8), user="root", submitted_at=START),
)


@pytest.mark.parametrize("forged", FORGED, ids=lambda event: event.type)
def test_who_writes_for_nodes_decides_nothing_for_quota(forged: Event) -> None:
    town = Town()
    town.publish("evil", forged, topic=Topic.WORKERS)
    town.settle()
    assert {event.type for event in town.log(Topic.SCHEDULING)} <= {"policy.configured"}
    (refused,) = town.broker.dump(NAMES.dlq(NAMES.name(Topic.WORKERS)))
    assert b"belongs to gangline.quota" in dict(refused.headers)["gangline_dlq_error"]


def test_who_submits_decides_nothing_for_the_scheduler() -> None:
    town = Town()
    publish_teams(town.bus, NAMES, (team(),), town.now)
    town.settle()
    town.publish("a", JobSubmitted(job_id="a", spec=spec()))
    town.settle()
    forged = (
        JobStateChanged(job_id="a", attempt=1, previous=JobState.RUNNING, state=JobState.FAILED),
        gang_released("a", 1, town.now, ReleaseReason.FAILED),
    )
    for event in forged:
        town.publish("a", event, topic=Topic.REQUESTS)
    town.settle()
    assert list(town.quota.state.active) == ["a"]
    assert len(town.broker.dump(NAMES.dlq(NAMES.name(Topic.REQUESTS)))) == len(forged)


ADMINISTRATION = (
    TeamConfigureRequested(config=team("evil", limit=10_000), user="root"),
    TeamsConfigureRequested(teams=(team("evil", limit=10_000),), user="root"),
    SnapshotApprovalRequested(
        snapshot=f"mix@sha256-{'0' * 64}", project="evil", purpose="all", user="root"
    ),
    NodeDrainRequested(node_id="node-0", user="root"),
)


@pytest.mark.parametrize("asked", ADMINISTRATION, ids=lambda event: event.type)
def test_who_submits_administers_nothing(asked: Event) -> None:
    town = Town()
    town.publish("evil", asked, topic=Topic.REQUESTS)
    town.settle()
    assert town.log(Topic.QUOTA) == []
    (refused,) = town.broker.dump(NAMES.dlq(NAMES.name(Topic.REQUESTS)))
    assert b"belongs to gangline.admin" in dict(refused.headers)["gangline_dlq_error"]

    town.publish("evil", asked, topic=Topic.ADMIN)
    town.settle()
    assert len(town.log(Topic.QUOTA)) == 1


def test_two_systems_may_give_their_requests_the_same_id() -> None:
    town = Town()
    publish_teams(town.bus, NAMES, (team(),), town.now)
    town.settle()
    for job_id in ("a", "b"):
        town.publish(job_id, JobSubmitted(job_id=job_id, spec=spec()))
    town.settle()
    for _ in range(2):  # and a repetition is recognised
        town.publish("a", JobCancelRequested(job_id="a"), ce_id="17", source="/portal")
        town.publish("b", JobCancelRequested(job_id="b"), ce_id="17", source="/airflow")
        town.settle()
    answers = [event for event in town.log(Topic.QUOTA) if isinstance(event, CancelAdmitted)]
    assert [(event.job_id, event.request_source) for event in answers] == [
        ("a", "/portal"),
        ("b", "/airflow"),
    ]
    ids = [decode(record).id for record in town.broker.dump(NAMES.name(Topic.QUOTA))]
    assert len(ids) == len(set(ids))
