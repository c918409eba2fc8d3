"""The state of a gang and its ranks on this node."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from gangline_schemas.events.heartbeats import GangStatus, RankStatus, Trouble
from gangline_schemas.events.scheduling import (
    CheckpointIntervalChanged,
    GangAllocated,
    NodeAssignment,
    ResumePointChanged,
    StopReason,
)
from gangline_schemas.events.workers import ExitReason, SampleRange, WorkerExited
from gangline_schemas.rank_protocol import Control, ShardReady

from .effects import Effect, SendControl
from .keys import GangKey, RankKey
from .pace import Pace
from .trial_points import Allowance

_RESUMES = {StopReason.PREEMPTED, StopReason.DRAIN, StopReason.DEFRAGMENT, StopReason.RESIZE}
_STEPS_ON_DISK = 8
SAVES_ON_THEIR_WAY = 2  # of a rank: one goes into the store, one waits; both lie on this disk


class Phase(Enum):
    """Where a rank's process is in its life."""

    WAITING = "waiting"
    STARTING = "starting"
    RUNNING = "running"
    GONE = "gone"


@dataclass(slots=True)
class Rank:
    """One rank on this node."""

    key: RankKey
    local_rank: int
    phase: Phase = Phase.WAITING
    pid: int = 0
    step: int | None = None
    connected: bool = False
    stopper: int | None = None  # its process that asks whether to stop, by pid
    terminated: bool = False  # SIGTERM was sent
    ending: ExitReason | None = None  # why the agent ends it, if it does
    killed_at_s: float | None = None
    uploads: dict[int, ShardReady] = field(default_factory=dict)  # by step: on their way
    on_disk: tuple[int, ...] = ()  # the last steps of which its part was found right there
    saved: int | None = None  # the newest step of which its part is in the store
    storing: bool = False  # its outputs are on their way into the store
    held_exit: WorkerExited | None = None  # not reported yet: see `Gang.awaits_commit`
    held_until_s: float = 0.0
    pace: Pace = field(default_factory=Pace)
    trouble: Trouble | None = None
    damaged_object: str | None = None  # the key of what it could not read of its checkpoint
    damaged: int = 0  # blocks of data that it said to be
    left_out: tuple[SampleRange, ...] = ()  # what it said that the next attempt goes without
    points: Allowance = field(default_factory=Allowance)  # of a trial

    @property
    def alive(self) -> bool:
        """Whether a process of this rank may run."""
        return self.phase is Phase.RUNNING or self.phase is Phase.STARTING

    def status(self, at_s: float) -> RankStatus:
        """Its status for a heartbeat."""
        return RankStatus(
            rank=self.key.rank,
            pid=self.pid,
            step=self.step,
            activity=self.pace.activity,
            quiet_s=self.pace.quiet_s(at_s),
            step_p99_s=self.pace.step_p99_s(),
            busy_s=self.pace.busy_s(),
            trouble=self.trouble,
        )


@dataclass(slots=True)
class Gang:
    """The part of one attempt that is on this node."""

    key: GangKey
    allocation: GangAllocated
    assignment: NodeAssignment
    incarnation: str
    ranks: dict[int, Rank]
    prepared: bool = False
    store_open: bool = False
    failed: bool = False  # its launch failed: nothing of it starts any more
    held_since_s: float | None = None  # when others, killed, were on its GPUs
    stop: str | None = None
    stop_by_s: float | None = None
    terminate_at_s: float | None = None  # ranks that handle the stop get SIGTERM then
    checkpoint_requests: int = 0
    requests_seen: set[str] = field(default_factory=set)
    committed: int | None = None  # the newest step of its own that it would start from again
    interval_s: float | None = None  # it saves this often since that was changed while it runs
    over: bool = False  # released, superseded or its lease lost
    final: bool = False
    hung: bool = False  # its stacks were asked for
    stacks_by_s: float | None = None  # nothing kills it before, or until they are here

    @property
    def alive(self) -> bool:
        """Whether any of its processes may run."""
        return any(rank.alive for rank in self.ranks.values())

    def status(self, at_s: float) -> GangStatus:
        """Its status for a heartbeat at this monotonic time: of the ranks that run."""
        running = (rank for rank in self.ranks.values() if rank.phase is Phase.RUNNING)
        return GangStatus(
            job_id=self.key.job_id,
            attempt=self.key.attempt,
            ranks=tuple(rank.status(at_s) for rank in running),
        )

    @property
    def handles_stop(self) -> bool:
        """Whether a rank here asks whether to stop, and so can lead the others out."""
        return any(rank.alive and rank.stopper is not None for rank in self.ranks.values())

    def stacks_awaited(self, at_s: float) -> bool:
        """Whether its ranks must live at this monotonic time, until their stacks are here."""
        return self.stacks_by_s is not None and at_s < self.stacks_by_s

    @property
    def gpus(self) -> frozenset[int]:
        """The GPUs that it holds on this node."""
        return frozenset(self.assignment.gpus)

    @property
    def hosts_store(self) -> bool:
        """Whether its rendezvous is on this node."""
        return self.assignment.first_rank == 0

    @property
    def incremental(self) -> bool:
        """Whether its saves leave out what earlier ones wrote."""
        return self.allocation.spec.checkpoint.incremental is not None

    def follow(self, event: ResumePointChanged | CheckpointIntervalChanged) -> bool:
        """Take what changed of its job; whether its ranks must learn of it."""
        if isinstance(event, CheckpointIntervalChanged):
            self.interval_s = event.interval_s
            return True
        self.committed = self._own_step(event)
        return self.incremental

    def note_on_disk(self, rank: Rank, step: int) -> bool:
        """Note a rank's part on this disk; whether it is the last of the ranks here."""
        rank.on_disk = (*rank.on_disk, step)[-_STEPS_ON_DISK:]
        return all(step in each.on_disk for each in self.ranks.values())

    def awaits_commit(self, rank: Rank, at_s: float) -> bool:
        """Whether an orderly exit is held back at this monotonic time.

        Its uploads or outputs are on their way. Or the job resumes elsewhere (`_RESUMES`), and the
        rank's save is not committed: an attempt that began now would resume from an older step.
        """
        if rank.uploads or rank.storing:
            return True
        if self.stop not in _RESUMES or rank.saved is None:
            return False
        until_s = min(rank.held_until_s, self.stop_by_s or rank.held_until_s)
        return at_s < until_s and (self.committed is None or self.committed < rank.saved)

    def _own_step(self, event: ResumePointChanged) -> int | None:
        """The step of this attempt that the job would start from again, if it is one."""
        point = event.checkpoint
        if point is None or event.restored:
            return None
        own = (point.job_id, point.attempt) == (self.key.job_id, self.key.attempt)
        return point.step if own else None

    @property
    def behind(self) -> bool:
        """Whether the store takes what its ranks here save more slowly than they save it."""
        return any(len(rank.uploads) >= SAVES_ON_THEIR_WAY for rank in self.ranks.values())

    @property
    def has_requests(self) -> bool:
        """Whether any request to its ranks stands."""
        return self.control != Control()

    @property
    def control(self) -> Control:
        """The present requests to its ranks."""
        return Control(
            stop=self.stop,
            checkpoint_request=self.checkpoint_requests,
            committed=self.committed if self.incremental else None,
            interval_s=self.interval_s,
            behind=self.behind,
        )

    def send_control(self) -> list[Effect]:
        """To all its ranks that can receive it."""
        return [
            SendControl(rank.key, self.control)
            for rank in self.ranks.values()
            if rank.connected and rank.alive
        ]
