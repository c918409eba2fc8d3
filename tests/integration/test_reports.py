"""Reports over the real tracker and engine: known rows in, every figure checked by hand.

The week is 2026-W47; times are hours from its Monday, 00:00 UTC.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gangline_bus.codec import encode
from gangline_gateway.reports.facts import Period
from gangline_gateway.reports.period import WEEK, week_of
from gangline_gateway.reports.source import Reports
from gangline_gateway.reports.utilization import utilization
from gangline_gateway.reports.weekly import figures
from gangline_schemas.base import Event
from gangline_schemas.catalog import topic_of
from gangline_schemas.envelope import Envelope
from gangline_schemas.events.checkpoints import CheckpointCommitted
from gangline_schemas.events.heartbeats import GpuStatus, WorkerHeartbeat
from gangline_schemas.events.quota import JobRejected, TeamConfigured
from gangline_schemas.events.scheduling import (
    CheckpointRef,
    GangStopping,
    JobQueued,
    JobStateChanged,
    NodeAdmitted,
    NodeCordoned,
    StopReason,
)
from gangline_schemas.events.steps import WorkerStep
from gangline_schemas.job import JobSpec, JobState
from gangline_schemas.resources import Resources
from gangline_schemas.team_limits import TeamConfig
from support.builders.gangs import (
    assigned,
    gang_allocated,
    gang_failed,
    gang_released,
    node_info,
    spread,
)
from support.harnesses.tracker_process import TrackerProcess, running_tracker
from support.waiting import wait_until

MONDAY = datetime(2026, 11, 16, tzinfo=UTC)
LATER = MONDAY + timedelta(days=30)


def at(hours: float) -> datetime:
    return MONDAY + timedelta(hours=hours)


class Story:
    """Events at chosen times, sent to the tracker."""

    def __init__(self, tracker: TrackerProcess) -> None:
        self.tracker = tracker
        self.specs: dict[str, JobSpec] = {}
        self.events = 0

    def say(self, hours: float, event: Event, subject: str) -> None:
        self.tracker.sent += 1
        self.events += 1
        envelope = Envelope(f"event-{self.tracker.sent}", "test", at(hours), subject, event)
        topic = self.tracker.names.name(topic_of(event.type))
        self.tracker.writer.send(encode(envelope, topic=topic))

    def team(self, hours: float, team: str, limit: int, guarantee: int, **more: Any) -> None:
        config = TeamConfig(team=team, gpu_limit=limit, gpu_guarantee=guarantee, **more)
        self.say(hours, TeamConfigured(config=config), team)

    def node(self, hours: float, node: str, gpus: int, incarnation: str = "i1") -> None:
        info = node_info(node, gpus, incarnation=incarnation)
        self.say(hours, NodeAdmitted(node=info), node)

    def away(self, hours: float, node: str, reason: Any) -> None:
        self.say(hours, NodeCordoned(node_id=node, incarnation="i1", reason=reason), node)

    def queued(self, hours: float, job: str, team: str, gpus: int, priority: int) -> None:
        spec = JobSpec(
            name=job, team=team, run="true", resources=Resources(gpus=gpus), priority=priority
        )
        self.specs[job] = spec
        queued = JobQueued(job_id=job, spec=spec, user="ann", submitted_at=at(hours))
        self.say(hours, queued, job)

    def allocated(self, hours: float, job: str, attempt: int, gpus: tuple[int, ...]) -> None:
        spec = self.specs[job]
        place = assigned("node-1", gpus, incarnation="i1")
        self.say(hours, gang_allocated(job, spec, place, attempt=attempt), job)

    def without_gpus(self, hours: float, job: str, team: str) -> None:
        """2.5 CPUs on each of two nodes for four hours."""
        need = Resources(gpus=0, cpus=2.5, memory_gb=1, nodes=2)
        spec = JobSpec(name=job, team=team, run="true", resources=need)
        self.say(hours, JobQueued(job_id=job, spec=spec, user="a", submitted_at=at(hours)), job)
        self.say(hours, gang_allocated(job, spec, *spread(["cpu-0", "cpu-1"], 0)), job)
        self.moved(hours + 4, job, 1, JobState.SUCCEEDED)
        self.released(hours + 4, job, 1, since=hours)

    def moved(self, hours: float, job: str, attempt: int, state: JobState) -> None:
        before = JobState.INITIALIZING if state is JobState.RUNNING else JobState.RUNNING
        event = JobStateChanged(job_id=job, attempt=attempt, previous=before, state=state)
        self.say(hours, event, job)

    def released(self, hours: float, job: str, attempt: int, since: float) -> None:
        self.say(hours, gang_released(job, attempt, at(since)), job)

    def steps(self, job: str, team: str, hours: float, mfu: tuple[float, ...]) -> None:
        first = round(at(hours).timestamp() * 1000)
        event = WorkerStep(
            run_id=job, team=team, attempt=1, rank=0, step=tuple(range(len(mfu))),
            time_ms=tuple(first + index for index in range(len(mfu))),
            metrics={"mfu": mfu, "loss": (9.0,) * len(mfu)},
        )  # fmt: skip
        self.say(hours, event, job)
        self.events -= 1

    def beat(self, hours: float, sequence: int, busy: tuple[float | None, ...]) -> None:
        event = WorkerHeartbeat(
            node_id="node-1", incarnation="i1", sequence=sequence, sent_at=at(hours),
            gpus=tuple(GpuStatus(index=i, utilization=u) for i, u in enumerate(busy)),
        )  # fmt: skip
        self.say(hours, event, "node-1")
        self.events -= 1


def tell(story: Story) -> None:
    """Two teams, two nodes, six jobs: a failure, a preemption, a job that only waits."""
    story.team(-300, "nlp", limit=8, guarantee=1)
    story.team(-200, "nlp", limit=8, guarantee=4, parent="lab")
    story.team(-200, "vision", limit=4, guarantee=2, borrow_limit=1)
    story.node(-48, "node-1", 8)
    story.node(24, "node-2", 4)
    story.away(30, "node-1", "drain")
    story.away(31, "node-1", "outdated")
    story.away(48, "node-2", "failed")

    story.queued(-24, "old", "nlp", gpus=1, priority=50)
    story.allocated(-23, "old", 1, (0,))
    story.moved(-23, "old", 1, JobState.RUNNING)
    story.moved(-20, "old", 1, JobState.FAILED)
    story.released(-20, "old", 1, since=-23)

    story.queued(0, "fails", "nlp", gpus=4, priority=10)
    story.allocated(1, "fails", 1, (0, 1, 2, 3))
    story.moved(1, "fails", 1, JobState.RUNNING)
    story.say(5, gang_failed("fails", 1, at(5)), "fails")
    story.released(5, "fails", 1, since=1)
    story.allocated(6, "fails", 2, (0, 1, 2, 3))
    story.moved(6.5, "fails", 2, JobState.RUNNING)
    story.moved(10, "fails", 2, JobState.SUCCEEDED)
    story.released(10, "fails", 2, since=6)

    story.queued(-2, "yields", "vision", gpus=2, priority=60)
    story.allocated(2, "yields", 1, (4, 5))
    story.moved(2, "yields", 1, JobState.RUNNING)
    ref = CheckpointRef(job_id="yields", attempt=1, step=10, world_size=2, commit_key="k")
    story.say(4, CheckpointCommitted(job_id="yields", checkpoint=ref, size_bytes=5, objects=3),
              "yields")  # fmt: skip
    asked = GangStopping(job_id="yields", attempt=1, reason=StopReason.PREEMPTED, deadline=at(5.5))
    story.say(5, asked, "yields")
    story.released(5.25, "yields", 1, since=2)
    story.allocated(7, "yields", 2, (4, 5))
    story.moved(7.5, "yields", 2, JobState.RUNNING)
    story.moved(8, "yields", 2, JobState.CANCELLED)
    story.released(8, "yields", 2, since=7)

    story.queued(100, "waits", "vision", gpus=40, priority=90)
    story.queued(160, "goes-on", "nlp", gpus=1, priority=50)
    story.allocated(166, "goes-on", 1, (0,))
    story.moved(166, "goes-on", 1, JobState.RUNNING)
    story.moved(170, "goes-on", 1, JobState.SUCCEEDED)
    story.released(170, "goes-on", 1, since=166)
    refused = JobRejected(job_id="refused", reason="96/64 GPUs", team="nlp", submitted_at=at(3))
    story.say(3, refused, "refused")

    story.without_gpus(-1000, "prepares", "nlp")

    story.steps("fails", "nlp", 2, (0.2, 0.4, 0.6, 1e300, -1.0, 45.0))
    story.steps("yields", "vision", 3, (0.1, 0.1))
    story.steps("old", "nlp", -22, (0.9,))
    story.beat(3, 0, (80.0, 80.0, 80.0, 80.0, 20.0, 20.0, None, None))
    story.beat(4, 1, (100.0,) * 8)  # one of 168 counts
    story.beat(12, 168, (0.0,) * 8)  # no gang has them


@pytest.fixture(scope="module")
def reports(kafka_bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reports]:
    with running_tracker(kafka_bootstrap, tmp_path_factory.mktemp("reports")) as process:
        story = Story(process)
        tell(story)
        process.settled()
        client = process.client("service")
        told = "events WHERE topic != 'gangline.parts'"  # not the tracker's own announcement
        for table, rows in ((told, story.events), ("steps", 18), ("heartbeats", 3)):
            count = f"SELECT count() FROM {table}"
            wait_until(table, lambda: client.query(count).result_rows[0][0] == rows)  # noqa: B023
        yield Reports(client)


def test_utilization_of_the_week(reports: Reports) -> None:
    found = utilization(reports.facts(week_of("2026-W47", LATER)), None)
    cluster = found.cluster
    assert (cluster.gpus_total, cluster.gpus_allocated) == (8, 1)
    assert cluster.gpu_hours_total == 8 * 168 + 4 * 24
    # fails 4 x 4 + 4 x 4, yields 2 x 3.25 + 2 x 1, goes-on 1 x 2
    assert cluster.gpu_hours_allocated == 32 + 8.5 + 2
    assert cluster.utilization == pytest.approx(42.5 / 1440)
    assert cluster.gpus_total_mean == pytest.approx(1440 / 168)
    assert cluster.gpus_allocated_mean == pytest.approx(42.5 / 168)
    assert cluster.gpu_utilization == pytest.approx((4 * 80 + 2 * 20) / 14 / 100)
    assert found.mfu == pytest.approx((0.2 + 0.4 + 0.6 + 0.1 + 0.1) / 5)
    nlp, vision = found.teams
    assert (nlp.team, nlp.gpu_limit, nlp.gpu_guarantee, nlp.gpus_allocated) == ("nlp", 8, 4, 1)
    assert (nlp.gpu_hours_allocated, nlp.parent, vision.parent) == (34, "lab", None)
    assert (nlp.gpus_share, nlp.utilization) == (4, pytest.approx(34 / (4 * 168)))
    assert nlp.gpu_utilization == pytest.approx(0.8)
    assert nlp.mfu == pytest.approx(0.4)
    # fails waited 1 h twice for 4, goes-on 6 h for 1
    assert (nlp.gpu_hours_pending, nlp.gpus_pending) == (8 + 6, 0)
    assert (vision.gpu_limit, vision.gpu_guarantee, vision.borrow_limit) == (4, 2, 1)
    assert vision.gpu_hours_allocated == 8.5
    assert vision.gpu_utilization == pytest.approx(0.2)
    assert vision.mfu == pytest.approx(0.1)
    # yields waited 2 h of the week, then 1.75 h, for 2; waits waited 68 h for 40
    assert (vision.gpu_hours_pending, vision.gpus_pending) == (7.5 + 2720, 40)
    assert found.gpu_hours_pending == 14 + 7.5 + 2720


def test_the_week_and_the_one_before(reports: Reports) -> None:
    period = week_of("2026-W47", LATER)
    facts, earlier = reports.facts(period), reports.facts(period.earlier(WEEK))
    this, before = figures(facts, None), figures(earlier, None)
    assert (this.jobs_submitted, this.jobs_ended, this.jobs_succeeded) == (3, 2, 1)
    assert (this.jobs_failed, this.jobs_cancelled, this.completion_rate) == (0, 1, 0.5)
    # 1 h, 4 h, 6 h
    assert (this.wait.jobs, this.wait.p50_s, this.wait.p95_s) == (3, 14_400, 21_600)
    by_gpus = {row.name: (row.jobs, row.p50_s, row.p95_s, row.waiting) for row in this.wait_by_gpus}
    assert by_gpus == {
        "1": (1, 21_600, 21_600, 0),
        "2-8": (2, 3_600, 14_400, 0),
        "9-32": (0, None, None, 0),
        "33-128": (0, None, None, 1),
        "> 128": (0, None, None, 0),
    }
    by_priority = {row.name: (row.jobs, row.p95_s, row.waiting) for row in this.wait_by_priority}
    assert by_priority == {
        "0-19": (1, 3_600, 0),
        "20-49": (0, None, 0),
        "50-79": (2, 21_600, 0),
        "80-100": (0, None, 1),
    }
    assert (this.failures, this.repairs, this.mttr_s) == (1, 1, 5_400)
    # 2 GPUs: 0.25 h to release, 1 h since the checkpoint, 0.5 h to start again
    assert (this.preemptions, this.preemption_gpu_hours) == (1, 2 * (0.25 + 1 + 0.5))
    assert [(row.team, row.gpu_guarantee) for row in this.unused_quota] == [
        ("vision", 2),
        ("nlp", 4),
    ]
    assert this.unused_quota[1].used == pytest.approx(34 / 168 / 4)
    assert [(row.job_id, row.name, row.gpu_hours) for row in this.low_mfu] == [
        ("yields", "yields", 8.5)
    ]
    assert this.low_mfu[0].mfu == pytest.approx(0.1)
    assert before.cluster.gpu_hours_total == 8 * 48
    assert before.cluster.gpu_hours_allocated == 3
    assert (before.jobs_submitted, before.jobs_ended, before.completion_rate) == (2, 1, 0.0)
    assert (before.wait.jobs, before.wait.p95_s, before.wait.waiting) == (1, 3_600, 1)
    assert before.gpu_hours_pending == 1 + 2 * 2
    assert (before.mfu, before.mttr_s, before.preemptions) == (pytest.approx(0.9), None, 0)


def test_a_team_sees_the_clusters_totals_and_its_own_rows(reports: Reports) -> None:
    facts = reports.facts(week_of("2026-W47", LATER))
    own = utilization(facts, frozenset({"vision"}))
    assert own.cluster.gpu_hours_allocated == 42.5
    assert [team.team for team in own.teams] == ["vision"]
    assert (own.mfu, own.gpu_hours_pending) == (pytest.approx(0.1), 2727.5)
    text = figures(facts, frozenset({"vision"})).model_dump_json()
    assert "yields" in text
    assert "nlp" not in text
    assert "fails" not in text


def test_a_job_without_gpus_has_cpu_hours_and_no_gpu_hours(reports: Reports) -> None:
    found = utilization(reports.facts(Period(at(-1002), at(-990))), None)
    assert (found.cluster.cpu_hours_allocated, found.cluster.gpu_hours_allocated) == (20, 0)
    assert [(team.team, team.cpu_hours_allocated, team.cost) for team in found.teams] == [
        ("nlp", 20, None)
    ]


def test_before_anything_happened(reports: Reports) -> None:
    empty = reports.facts(week_of("2020-W10", LATER))
    assert (empty.jobs, empty.nodes, empty.quotas, empty.mfu) == ((), (), (), ())
    assert (empty.gpu_use, empty.busy_share) == ((), None)
