"""A scheduler with its neighbours' events in short form: nodes, jobs, ranks, verdicts."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from gangline_scheduler.core.decide import Scheduler
from gangline_scheduler.core.model import Job
from gangline_scheduler.core.policy.config import Policy
from gangline_scheduler.core.policy.configured import Limits
from gangline_scheduler.core.state import State
from gangline_schemas.base import Event
from gangline_schemas.events.checkpoints import CheckpointCommitted
from gangline_schemas.events.faults import FailureCause
from gangline_schemas.events.quota import (
    CancelAdmitted,
    JobAdmitted,
    PriorityAdmitted,
    RestoreAdmitted,
    TeamConfigured,
)
from gangline_schemas.events.scheduling import (
    CheckpointRef,
    GangAllocated,
    GangStopping,
    JobStateChanged,
    StopReason,
)
from gangline_schemas.events.workers import (
    ExitReason,
    NodeInfo,
    NodeJoined,
    NodeLeaving,
    SampleRange,
    WorkerExited,
    WorkerStarted,
)
from gangline_schemas.job import JobState
from support.builders.deciding import Drive, every, spec, team
from support.builders.gangs import gang_failed, node_info


def node(
    node_id: str = "n1",
    gpus: int = 2,
    *,
    rack: str = "r1",
    block: str = "b1",
    model: str = "cpu",
    incarnation: str = "i1",
    cpus: float = 64,
    ports: tuple[int, ...] = (7001, 7002, 7003),
    release: str | None = None,
) -> NodeInfo:
    """A node with room for any small job."""
    return node_info(
        node_id, gpus, model=model, gpu_memory_gb=1, incarnation=incarnation, rack=rack,
        block=block, cpus=cpus, rendezvous_ports=ports, release=release,
    )  # fmt: skip


def point(job_id: str, step: int, attempt: int = 1, world_size: int = 1) -> CheckpointRef:
    """A committed checkpoint."""
    return CheckpointRef(
        job_id=job_id,
        attempt=attempt,
        step=step,
        world_size=world_size,
        commit_key=f"{job_id}/{attempt}/{step}/COMMIT.json",
    )


class Cluster(Drive[State]):
    """A scheduler that knows these nodes and the teams nlp and cv."""

    def __init__(
        self,
        *nodes: NodeInfo,
        guard_minutes: float = 30,
        limit: int = 64,
        policy: Policy | None = None,
        oldest_agents: str | None = None,
    ) -> None:
        default = Policy(reserve_after=timedelta(minutes=guard_minutes))
        super().__init__(Scheduler(Limits(oldest_agents=oldest_agents), policy or default))
        for name in ("nlp", "cv"):
            self.give(TeamConfigured(config=team(name, limit=limit)))
        for info in nodes:
            self.give(NodeJoined(node=info))

    def submit(
        self,
        job_id: str,
        gpus: int = 1,
        of_team: str = "nlp",
        start: CheckpointRef | None = None,
        waits_since: datetime | None = None,
        **fields: object,
    ) -> list[Event]:
        """A job was admitted."""
        wanted = spec(of_team, gpus, **fields)
        admitted = JobAdmitted(
            job_id=job_id, spec=wanted, user="ada", submitted_at=self.now, start=start,
            waits_since=waits_since,
        )  # fmt: skip
        return self.give(admitted)

    def job(self, job_id: str) -> Job:
        """What is known of an active job."""
        return self.state.jobs[job_id]

    def start(self, job_id: str, ranks: Sequence[int] | None = None) -> list[Event]:
        """Ranks of the live attempt (all of them) started."""
        return [
            event
            for rank in self._ranks(job_id, ranks)
            for event in self.give(
                WorkerStarted(
                    job_id=job_id,
                    attempt=self.job(job_id).attempt,
                    rank=rank,
                    node_id="n1",
                    incarnation="i1",
                    pid=1,
                )
            )
        ]

    def exit(
        self,
        job_id: str,
        reason: ExitReason = ExitReason.FINISHED,
        ranks: Sequence[int] | None = None,
        attempt: int | None = None,
        damaged: str | None = None,
    ) -> list[Event]:
        """Ranks of the live attempt (all of them) are gone; of which object, if it is damaged."""
        number = self.job(job_id).attempt if attempt is None else attempt
        return [
            event
            for rank in self._ranks(job_id, ranks)
            for event in self.give(
                WorkerExited(
                    job_id=job_id,
                    attempt=number,
                    rank=rank,
                    node_id="n1",
                    incarnation="i1",
                    reason=reason,
                    damaged_object=damaged,
                )
            )
        ]

    def run(self, job_id: str, gpus: int = 1, **fields: object) -> list[Event]:
        """Submit a job and let all its ranks start."""
        return [*self.submit(job_id, gpus, **fields), *self.start(job_id)]  # type: ignore[arg-type]

    def commit(self, job_id: str, step: int, attempt: int = 1) -> list[Event]:
        """A checkpoint was committed."""
        ref = point(job_id, step, attempt)
        return self.give(
            CheckpointCommitted(job_id=job_id, checkpoint=ref, size_bytes=1, objects=1)
        )

    def fail(
        self,
        job_id: str,
        *,
        action: str = "restart",
        cause: FailureCause = FailureCause.PROCESS,
        avoid: tuple[str, ...] = (),
        left_out: tuple[SampleRange, ...] = (),
        attempt: int | None = None,
    ) -> list[Event]:
        """The fault manager judged the live attempt."""
        number = self.job(job_id).attempt if attempt is None else attempt
        why = "rank 1 was killed by signal 9"
        found = {"message": why, "avoid_nodes": avoid, "left_out": left_out}
        return self.give(gang_failed(job_id, number, self.now, cause, action, **found))

    def leave(self, node_id: str, incarnation: str = "i1") -> list[Event]:
        """A node will go."""
        return self.give(
            NodeLeaving(node_id=node_id, incarnation=incarnation, reason="told to stop")
        )

    def cancel(self, job_id: str) -> list[Event]:
        """A cancel was admitted."""
        return self.give(CancelAdmitted(job_id=job_id, user="ada"))

    def restore(self, job_id: str, step: int) -> list[Event]:
        """A restore was admitted."""
        return self.give(RestoreAdmitted(job_id=job_id, step=step, user="ada"))

    def prioritize(self, job_id: str, priority: int) -> list[Event]:
        """A change of priority was admitted."""
        return self.give(PriorityAdmitted(job_id=job_id, priority=priority, user="ada"))

    def _ranks(self, job_id: str, ranks: Sequence[int] | None) -> Sequence[int]:
        gang = self.job(job_id).gang
        return ranks if ranks is not None else range(gang.world_size if gang else 0)


def states(events: Sequence[Event]) -> list[str]:
    """The job states that were entered, in order."""
    return [event.state.value for event in every(events, JobStateChanged)]


def started_jobs(events: Sequence[Event]) -> list[str]:
    """The jobs that got their GPUs, in order."""
    return [event.job_id for event in every(events, GangAllocated)]


TERMINAL = frozenset(state for state in JobState if state.terminal)


def stopped_for(events: Sequence[Event], *reasons: StopReason) -> list[str]:
    """The jobs that were asked to stop, for one of these reasons or for any."""
    stops = every(events, GangStopping)
    return [event.job_id for event in stops if not reasons or event.reason in reasons]
