"""An observer of gangline.quota and gangline.scheduling: facts from the logs alone."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gangline_schemas.base import Event
from gangline_schemas.events.quota import (
    CancelAdmitted,
    DrainAdmitted,
    JobAdmitted,
    JobRejected,
    PriorityAdmitted,
    RestoreAdmitted,
    UsageCharged,
)
from gangline_schemas.events.scheduling import (
    CheckpointRef,
    GangAllocated,
    GangReleased,
    JobQueued,
    JobStateChanged,
    JobWaiting,
    NodeAdmitted,
    ReleaseReason,
    ResumePointChanged,
    TeamNoted,
)
from gangline_schemas.job import JobState
from gangsim.engine import Violation
from gangsim.node import CPUS

if TYPE_CHECKING:
    from gangsim.world import World

CHARGE_SLACK_S = 0.01


@dataclass(slots=True)
class WatchedJob:
    """One job as the logs say."""

    state: JobState = JobState.PENDING
    attempt: int = 0
    gang: GangAllocated | None = None
    waiting: str | None = None
    queued: bool = False
    restored: CheckpointRef | None = None


@dataclass(slots=True)
class JobsWatch:
    """Invariants 1, 2, 3, 5, 6 and 16. Raises Violation."""

    world: World
    admitted: dict[str, WatchedJob] = field(default_factory=dict)
    rejected: dict[str, str] = field(default_factory=dict)
    gpus: dict[tuple[str, int], str] = field(default_factory=dict)
    node_gpus: dict[str, int] = field(default_factory=dict)
    ceilings: dict[str, int] = field(default_factory=dict)
    released: dict[tuple[str, int], float] = field(default_factory=dict)
    charged: dict[tuple[str, int], float] = field(default_factory=dict)
    answered: dict[tuple[str, str], None] = field(default_factory=dict)

    def see(self, event: Event) -> None:  # noqa: PLR0912 - one case for each type
        """One committed event, in the order of its log."""
        match event:
            case JobAdmitted(job_id=job_id):
                if job_id in self.admitted or job_id in self.rejected:
                    raise Violation(f"{job_id} was decided upon twice by quota")
                self.admitted[job_id] = WatchedJob()
            case JobRejected(job_id=job_id, reason=reason):
                if job_id in self.admitted or job_id in self.rejected:
                    raise Violation(f"{job_id} was decided upon twice by quota")
                self.rejected[job_id] = reason
            case JobQueued(job_id=job_id):
                job = self._job(job_id)
                if job.queued:
                    raise Violation(f"{job_id} was queued twice")
                job.queued = True
            case JobStateChanged():
                self._changed(event)
            case JobWaiting(job_id=job_id, message=message):
                self._job(job_id).waiting = message
            case GangAllocated():
                self._allocated(event)
            case GangReleased():
                self._released(event)
            case ResumePointChanged():
                self._resume_changed(event)
            case UsageCharged():
                self._charged(event)
            case CancelAdmitted() | PriorityAdmitted() | RestoreAdmitted() | DrainAdmitted():
                request = (event.request_source, event.request_id)
                if request in self.answered:
                    raise Violation(f"request {event.request_id} was forwarded twice")
                self.answered[request] = None
            case NodeAdmitted(node=node):
                self.node_gpus[node.node_id] = len(node.gpus)
            case TeamNoted(config=config):
                self.ceilings[config.team] = config.ceiling
            case _:
                pass

    def ended(self, job_id: str) -> bool:
        """Whether the job is known to have ended."""
        job = self.admitted.get(job_id)
        return job is not None and job.state.terminal

    def _job(self, job_id: str) -> WatchedJob:
        try:
            return self.admitted[job_id]
        except KeyError:
            raise Violation(f"{job_id} is scheduled and was never admitted") from None

    def _changed(self, event: JobStateChanged) -> None:
        job = self._job(event.job_id)
        if job.state.terminal:
            raise Violation(f"{event.job_id} ended {job.state} and became {event.state}")
        if event.previous is not job.state:
            raise Violation(f"{event.job_id} was {job.state}, not {event.previous}")
        job.state = event.state
        if event.state is JobState.PENDING:
            job.waiting = None
        if event.state is JobState.SUCCEEDED:
            self.world.check_success(event.job_id, event.attempt)

    def _allocated(self, event: GangAllocated) -> None:
        job = self._job(event.job_id)
        if job.gang is not None or job.state is not JobState.PENDING:
            raise Violation(f"{event.job_id} is {job.state} and got another gang")
        if event.attempt != job.attempt + 1:
            raise Violation(f"{event.job_id}: attempt {event.attempt} after {job.attempt}")
        places = [(part.node_id, index) for part in event.nodes for index in part.gpus]
        need = event.spec.resources
        if need.gpus == 0:
            self._allocated_cpus(event)
            self._took(job, event)
            return
        whole = need.min_gpus or need.gpus, len(set(places)), need.gpus
        if list(whole) != sorted(whole) or len(set(places)) != event.world_size:
            raise Violation(f"{event.job_id} got {places} for {need.gpus} GPUs")
        nodes, each = [node_id for node_id, _ in places], need.gpus_per_worker or 1
        if any(len({*nodes[rank : rank + each]}) > 1 for rank in range(0, len(nodes), each)):
            raise Violation(f"{event.job_id} got {places}: a worker of {each} crosses nodes")
        for node_id, index in places:
            if index >= self.node_gpus.get(node_id, 0):
                raise Violation(f"{event.job_id} got GPU {index} of {node_id}: there is none")
            if (node_id, index) in self.gpus:
                holder = self.gpus[node_id, index]
                raise Violation(f"GPU {index} of {node_id} belongs to {holder} and {event.job_id}")
            self.gpus[node_id, index] = event.job_id
        self._took(job, event)
        used = sum(
            other.gang.world_size
            for other in self.admitted.values()
            if other.gang is not None and other.gang.team == event.team
            if other.gang.spec.resources.gpus
        )
        if used > self.ceilings.get(event.team, 0):
            raise Violation(f"team {event.team} holds {used} of {self.ceilings.get(event.team)}")

    def _allocated_cpus(self, event: GangAllocated) -> None:
        """16: one rank a node, and no node has more CPUs in use than it has."""
        self.world.engine.count("cpu gang")
        nodes = [part.node_id for part in event.nodes]
        wanted = event.spec.resources
        if not len({*nodes}) == event.world_size == wanted.ranks:
            raise Violation(f"{event.job_id} got {nodes} for {wanted.ranks} nodes")
        gangs = [job.gang for job in self.admitted.values() if job.gang is not None]
        for node_id in nodes:
            used = wanted.cpus or 0.0
            for gang in gangs:
                need = gang.spec.resources
                for part in gang.nodes:
                    if part.node_id == node_id:
                        used += need.cpus or need.cpus_per_gpu * len(part.gpus)
            if used > CPUS:
                raise Violation(f"{event.job_id} got CPUs of {node_id} that others have: {used}")

    def _took(self, job: WatchedJob, event: GangAllocated) -> None:
        job.gang, job.attempt = event, event.attempt
        if job.restored is not None and event.resume != job.restored:
            raise Violation(f"{event.job_id} was restored to {job.restored}, not {event.resume}")
        job.restored = None
        self.world.check_resume(event)

    def _released(self, event: GangReleased) -> None:
        job = self._job(event.job_id)
        if job.gang is None or job.gang.attempt != event.attempt:
            raise Violation(f"{event.job_id}: attempt {event.attempt} was released and is not live")
        if event.reason is ReleaseReason.PREEMPTED and job.gang.spec.resources.gpus == 0:
            self.world.engine.count("cpu gang: preempted")
        self.released[event.job_id, event.attempt] = event.gpu_seconds
        for part in job.gang.nodes:
            for index in part.gpus:
                del self.gpus[part.node_id, index]
        job.gang = None

    def _resume_changed(self, event: ResumePointChanged) -> None:
        job = self._job(event.job_id)
        if event.restored:
            job.restored = event.checkpoint
        elif event.forgotten == job.restored or job.gang is not None:
            job.restored = None

    def _charged(self, event: UsageCharged) -> None:
        """Each attempt's GPU time is charged once, and is what the scheduler says."""
        key = (event.job_id, event.attempt)
        if key in self.charged:
            raise Violation(f"{key} was charged twice")
        self.charged[key] = event.gpu_seconds
        if abs(event.gpu_seconds - self.released.get(key, -1.0)) > CHARGE_SLACK_S:
            raise Violation(f"{key}: charged {event.gpu_seconds}, held {self.released.get(key)}")
