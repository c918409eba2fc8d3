"""What quota, scheduler, faults, checkpoints and the gateway have of the year: `DECIDERS`."""

from __future__ import annotations

import random
from datetime import timedelta
from typing import Any

from scheduler_harness import Jobs, ranks_of
from year_view import GatewayYear, ViewCodec, Viewed
from year_work import (
    GPUS,
    NODES,
    PENDING,
    SAVES_A_ROUND,
    START,
    Made,
    Run,
    Service,
    allocated,
    committed,
    ended,
    fresh_id,
    live_gangs,
    node_info,
    node_name,
    ref,
    spec_of,
    teams,
)

from gangline_bus.codec import Received
from gangline_checkpoints.core.decide import CheckpointDecider
from gangline_checkpoints.core.model import Delete, Removed, Scrubbed, Verified, Verify
from gangline_checkpoints.core.snapshot import codec as checkpoint_codec
from gangline_faults.core.decide import FaultDecider
from gangline_faults.core.snapshot import codec as fault_codec
from gangline_gateway.live import ENDED_KEPT
from gangline_quota.core.decide import Quota
from gangline_quota.core.snapshot import codec as quota_codec
from gangline_scheduler.core.decide import Scheduler
from gangline_scheduler.core.snapshot import codec as scheduler_codec
from gangline_schemas.base import Event
from gangline_schemas.catalog import Topic
from gangline_schemas.checkpoint import checkpoint_prefix, job_prefix, manifest_name, shard_name
from gangline_schemas.checkpoint_policy import Retention
from gangline_schemas.envelope import Envelope
from gangline_schemas.events.checkpoints import AttemptEnded, AttemptNoted, ResumeNoted
from gangline_schemas.events.faults import GangUnwatched, GangWatched, NodeFailed, NodeWatched
from gangline_schemas.events.heartbeats import GangStatus, RankActivity, RankStatus, WorkerHeartbeat
from gangline_schemas.events.quota import (
    GangMetered,
    JobAdmitted,
    JobClosed,
    JobIdTaken,
    TeamConfigured,
    UsageCharged,
)
from gangline_schemas.events.requests import JobSubmitted
from gangline_schemas.events.scheduling import (
    GangAllocated,
    JobQueued,
    NodeAdmitted,
    NodeCordoned,
    ResumePointChanged,
    TeamNoted,
)
from gangline_schemas.events.workers import (
    CheckpointShardWritten,
    ExitReason,
    NodeSaved,
    WorkerExited,
    WorkerStarted,
)
from gangline_schemas.job import JobState

PLACED_OF = 20
"""The scheduler places one of so many runs: what it remembers of places is the newest few."""


class QuotaYear(Service):
    """Admissions, meters and charges; the ids of runs that saved are kept, so it has every run."""

    def begin(self) -> None:
        self.fold(*(TeamConfigured(config=config) for config in teams()))

    def end_run(self, run: Run) -> None:
        since = self.now - timedelta(hours=run.hours)
        gang = {"job_id": run.job_id, "attempt": 1, "team": run.spec.team, "gpus": run.gpus}
        self.fold(
            JobAdmitted(
                job_id=run.job_id, spec=run.spec, user="ann", submitted_at=since,
                request_id=f"request-{run.number}", request_source="/gangline/gateway",
            ),
            GangMetered(**gang, allocated_at=since),
            *([JobIdTaken(job_id=run.job_id)] if run.saved else []),
            UsageCharged(**gang, allocated_at=since, released_at=self.now, gpu_seconds=1.0),
            JobClosed(job_id=run.job_id, state=JobState.SUCCEEDED),
        )  # fmt: skip

    def go_live(self) -> None:
        for job_id, spec, nodes in live_gangs():
            self.fold(
                JobAdmitted(job_id=job_id, spec=spec, user="ann", submitted_at=self.now),
                GangMetered(
                    job_id=job_id, attempt=1, team=spec.team, gpus=GPUS * len(nodes),
                    allocated_at=self.now,
                ),
            )  # fmt: skip
        for number in range(PENDING):
            waits = JobAdmitted(
                job_id=f"waits-{number}", spec=spec_of(number), user="ann", submitted_at=self.now
            )
            self.fold(waits)

    def round(self) -> None:
        self.now += self.between_runs
        (job_id, attempt), meter = next(iter(self.state.meters.items()))
        released, over = ended(job_id, attempt, meter.allocated_at)
        self.give("released", released)
        self.give("ended", over)
        spec, fresh = spec_of(len(self.written)), fresh_id(self)
        self.give("submitted", JobSubmitted(job_id=fresh, spec=spec, user="ann"))
        gang = allocated(fresh, spec, [node_name(at) for at in range(max(1, meter.gpus // GPUS))])
        self.give("allocated", gang)
        self.tick()


class SchedulerYear(Service):
    """The queue, gangs and nodes; live gangs are those that its own passes place."""

    def begin(self) -> None:
        self.fold(*(TeamNoted(config=config) for config in teams()))
        self.fold(*(NodeAdmitted(node=node_info(node_name(at), at)) for at in range(NODES)))

    def end_run(self, run: Run) -> None:
        job_id = run.job_id
        queued = JobQueued(job_id=job_id, spec=run.spec, user="ann", submitted_at=self.now)
        saves = [
            ResumePointChanged(job_id=job_id, checkpoint=point) for point in run.checkpoints(8)
        ]
        released, over = ended(job_id, 1, self.now)
        if run.number % PLACED_OF:
            self.fold(queued, *saves, over)
            return
        nodes = [node_name(at) for at in range(-(-run.gpus // GPUS))]
        self.fold(queued, allocated(job_id, run.spec, nodes), *saves)
        self.now += self.between_runs / 10
        self.fold(released, over)

    def lose_node(self, node_id: str) -> None:
        lost = NodeCordoned(node_id=node_id, incarnation="i", reason="failed")
        self.fold(NodeAdmitted(node=node_info(node_id)), lost)

    def go_live(self) -> None:
        jobs = Jobs(seed=1)
        self._fold_waiting(jobs, 600, timedelta(hours=6))
        self.tick()
        self._fold_waiting(jobs, PENDING - len(self.state.pending), timedelta(hours=3))
        for _ in range(40):
            running = len(self.state.live)
            self.now += timedelta(seconds=20)
            self.tick()
            if len(self.state.live) == running:
                break
        self.written.clear()

    def _fold_waiting(self, jobs: Jobs, count: int, ago: timedelta) -> None:
        for number in range(count):
            spec = h100(jobs.draw())
            since, job_id = self.now - ago * (1 - number / count), f"w{count}-{number}"
            self.fold(JobQueued(job_id=job_id, spec=spec, user="ann", submitted_at=since))

    def round(self) -> None:
        self.now += self.between_runs
        chance = random.Random(self.now.timestamp())
        live = [self.state.jobs[job_id] for job_id in self.state.live]
        for job in chance.sample(live, min(SAVES_A_ROUND, len(live))):
            step = 100 + (job.checkpoints[-1].step if job.checkpoints else 0)
            point = ref(job.job_id, job.spec, step, job.gang.world_size, job.attempt)
            self.give("commit", committed(point))
        decided = self._finish(chance.choice([job for job in live if job.gpus <= 64]))
        started = [event for event in decided if isinstance(event, GangAllocated)]
        for gang in [gang for gang in started if gang.world_size <= 64][:2]:
            self._start(gang)
        for _ in started[:8] or (None,):
            self.now += timedelta(milliseconds=1)
            spec = Jobs(chance.randrange(10**9)).draw()
            job = JobAdmitted(
                job_id=fresh_id(self), spec=h100(spec), user="ann", submitted_at=self.now
            )
            self.give("submission", job)
        self.tick()

    def _start(self, gang: GangAllocated) -> None:
        for rank, node_id in ranks_of(gang):
            started = WorkerStarted(
                job_id=gang.job_id, attempt=gang.attempt, rank=rank, node_id=node_id,
                incarnation="i", pid=1,
            )  # fmt: skip
            self.give("report", started)

    def _finish(self, job: Any) -> list[Event]:
        decided: list[Event] = []
        for rank in range(job.gang.world_size):
            exited = WorkerExited(
                job_id=job.job_id, attempt=job.gang.attempt, rank=rank,
                node_id=job.gang.nodes[0].node_id, incarnation="i", reason=ExitReason.FINISHED,
            )  # fmt: skip
            decided = self.give("report" if rank < job.gang.world_size - 1 else "release", exited)
        return decided


class FaultYear(Service):
    """Nodes and gangs under watch."""

    def begin(self) -> None:
        self.fold(*(NodeWatched(node_id=node_name(at), incarnation="i") for at in range(NODES)))

    def end_run(self, run: Run) -> None:
        self.fold(
            self._watched(run.job_id, [node_name(run.number % NODES)], run.gpus),
            GangUnwatched(job_id=run.job_id, attempt=1),
            GangUnwatched(job_id=run.job_id, attempt=1, final=True),
        )

    def lose_node(self, node_id: str) -> None:
        silent = NodeFailed(node_id=node_id, incarnation="i", reason="silent", silent_s=31.0)
        self.fold(NodeWatched(node_id=node_id, incarnation="i"), silent)

    def go_live(self) -> None:
        for job_id, _, nodes in live_gangs():
            self.fold(self._watched(job_id, nodes, GPUS * len(nodes)))

    def round(self, *, watched: bool = False) -> None:
        self.now += self.between_runs
        gangs = list(self.state.gangs.items())
        step = (self.now - START) // timedelta(seconds=1)
        for job_id, gang in random.Random(step).sample(gangs, SAVES_A_ROUND):
            spec = spec_of(step)
            self.give("commit", committed(ref(job_id, spec, step, gang.world_size, gang.attempt)))
        job_id, gang = gangs[0]
        for event in ended(job_id, gang.attempt, self.now):
            self.give("ended", event)
        self.give("allocated", allocated(fresh_id(self), spec_of(step), gang.nodes))
        if watched:
            self._beat(step)
            self.tick()

    def watched_round(self) -> None:
        self.round(watched=True)

    def _watched(self, job_id: str, nodes: list[str], gpus: int) -> GangWatched:
        return GangWatched(
            job_id=job_id, attempt=1, nodes=tuple(nodes), incarnations=("i",) * len(nodes),
            restart=spec_of(0).restart, team="team-00", world_size=gpus, allocated_at=self.now,
        )  # fmt: skip

    def _beat(self, step: int) -> None:
        """A heartbeat of each node: it is soft state, and not in the figures."""
        for job_id, gang in self.state.gangs.items():
            for place, node_id in enumerate(gang.nodes):
                ranks = tuple(
                    RankStatus(
                        rank=place * GPUS + at, pid=1, step=step, quiet_s=0.4,
                        activity=RankActivity.TRAINING, step_p99_s=1.2, busy_s=0.9,
                    )
                    for at in range(GPUS)
                )  # fmt: skip
                beat = WorkerHeartbeat(
                    node_id=node_id, incarnation="i", sequence=step, sent_at=self.now,
                    gangs=(GangStatus(job_id=job_id, attempt=gang.attempt, ranks=ranks),),
                )  # fmt: skip
                envelope = Envelope("b", "/agent", self.now, node_id, beat)
                heard = Received(envelope, Topic.HEARTBEATS.value, 0, 0)
                self.observe(heard)


class CheckpointYear(Service):
    """What is kept in the store; nothing of it is thinned, as ended runs keep their checkpoints."""

    def end_run(self, run: Run) -> None:
        job_id, kept = run.job_id, run.checkpoints(3)
        self._note(job_id, run.gpus, run.number)
        self.fold(*(committed(point) for point in kept))
        if kept:
            self.fold(ResumeNoted(job_id=job_id, checkpoint=kept[-1]))
        self.fold(
            AttemptEnded(
                job_id=job_id, attempt=1, final=True, ran_s=run.hours * 3600, succeeded=True
            )
        )

    def go_live(self) -> None:
        for number, (job_id, spec, nodes) in enumerate(live_gangs()):
            self._note(job_id, GPUS * len(nodes), number)
            for step in (1, 2, 3):
                point = ref(job_id, spec, step, GPUS * len(nodes))
                self.fold(committed(point), ResumeNoted(job_id=job_id, checkpoint=point))

    def _note(self, job_id: str, gpus: int, number: int) -> None:
        spec = spec_of(number)
        noted = AttemptNoted(
            job_id=job_id, attempt=1, world_size=gpus, keep=Retention(), allocated_at=self.now,
            prefix=job_prefix(spec.team, job_id, spec),
        )  # fmt: skip
        self.fold(noted)

    def round(self) -> None:
        self.now += self.between_runs
        step = (self.now - START) // timedelta(seconds=1)
        live = [job_id for job_id in self.state.active if self.state.jobs[job_id].live]
        for job_id in random.Random(step).sample(live, SAVES_A_ROUND):
            self._save(job_id, step)
        job_id, job = live[0], self.state.jobs[live[0]]
        for event in ended(job_id, job.attempt, self.now):
            self.give("ended", event)
        nodes = [node_name(at) for at in range(max(1, job.world_size // GPUS))]
        self.give("allocated", allocated(fresh_id(self), spec_of(step), nodes))
        self.tick()
        self._perform()

    def _save(self, job_id: str, step: int) -> None:
        job = self.state.jobs[job_id]
        place = checkpoint_prefix(job.prefix, job.attempt, step)
        common = {"job_id": job_id, "attempt": job.attempt, "step": step}
        for first in range(0, job.world_size, GPUS):
            ranks = tuple(range(first, min(first + GPUS, job.world_size)))
            node_id = node_name(first // GPUS)
            self._report("saved", NodeSaved(**common, node_id=node_id, ranks=ranks))
            for rank in ranks:
                self._report("report", shard(common, rank, job.world_size, node_id, place))
        self._perform()
        newest = self.state.jobs[job_id].kept[-1]
        team = job.prefix.split("/")[1]
        spec = spec_of(0).model_copy(update={"team": team})
        point = ref(job_id, spec, newest.step, newest.world_size, newest.attempt)
        self.give("resume", ResumePointChanged(job_id=job_id, checkpoint=point))
        self._perform()

    def _report(self, kind: str, event: Event) -> None:
        self.give(kind, event)
        envelope = Envelope("in", "/bench", self.now, "s", event)
        self.observe(Received(envelope, Topic.WORKERS.value, 0, 0))

    def _perform(self) -> None:
        for key, effect in self.decider.effects(self.state, self.soft).items():
            match effect:
                case Verify():
                    self.done(key, Verified(10**9, 3, 9.0))
                case Delete():
                    self.done(key, Removed(3))
                case _:
                    self.done(key, Scrubbed(10**9, 9.0))


def shard(
    common: dict[str, Any], rank: int, world_size: int, node_id: str, place: str
) -> CheckpointShardWritten:
    """A rank's part of a save."""
    digest = "0123456789abcdef" * 2
    manifest = {"key": f"{place}/{manifest_name(rank)}", "size_bytes": 40_000, "xxh3": digest}
    data = {"key": f"{place}/{shard_name(rank)}", "size_bytes": 10**9, "xxh3": digest}
    return CheckpointShardWritten.model_validate(
        {
            **common, "rank": rank, "world_size": world_size, "node_id": node_id,
            "manifest": manifest, "shards": (data,), "write_s": 12.3, "metrics": {"loss": 1.0},
        }
    )  # fmt: skip


def h100(spec: Any) -> Any:
    """A job of the scheduler's mix for a cluster of one model."""
    resources = spec.resources.model_copy(update={"gpu_type": ()})
    return spec.model_copy(update={"resources": resources})


DECIDERS: dict[str, Made] = {
    "quota": lambda: QuotaYear(Quota(), quota_codec(), thinned=1),
    "scheduler": lambda: SchedulerYear(Scheduler(), scheduler_codec(Scheduler().initial)),
    "faults": lambda: FaultYear(FaultDecider(), fault_codec()),
    "checkpoints": lambda: CheckpointYear(CheckpointDecider(), checkpoint_codec(), thinned=1),
    "gateway": lambda: GatewayYear(
        Viewed(),
        ViewCodec(),
        newest=ENDED_KEPT,
        thinned=50,  # type: ignore[arg-type]
    ),
}
