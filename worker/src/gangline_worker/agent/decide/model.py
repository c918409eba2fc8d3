"""Keys, inputs and effects of the agent's decisions, and the state of its gangs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import NamedTuple

from gangline_bus.codec import Received
from gangline_bus.decision import Tick
from gangline_schemas.base import Event
from gangline_schemas.events.heartbeats import GangStatus, RankStatus, Trouble, WorkerHeartbeat
from gangline_schemas.events.scheduling import (
    CheckpointIntervalChanged,
    GangAllocated,
    NodeAssignment,
    ResumePointChanged,
    StopReason,
)
from gangline_schemas.events.workers import (
    CheckpointShardWritten,
    ExitReason,
    SampleRange,
    WorkerExited,
)
from gangline_schemas.rank_protocol import Control, FromRank, ShardReady

from .pace import Pace

EXIT_CONFIG = 78  # sysexits.h EX_CONFIG: the job as submitted cannot start
MESSAGE_LIMIT = 4096
DAMAGE_LIMIT = 64
"""So many damaged blocks of data are published of one rank: no program may flood the bus."""
_GOES_ON = {StopReason.PREEMPTED, StopReason.DRAIN, StopReason.DEFRAGMENT, StopReason.RESIZE}
_STEPS_ON_DISK = 8
SAVES_ON_THEIR_WAY = 2  # of a rank: one goes into the store, one waits; both lie on this disk
STACKS_WAIT_S = 3.0
"""For so long at most a hanging gang is kept from being killed while its stacks are taken."""


class Moment(NamedTuple):
    """A point in time: `mono_s` for durations, `utc` for what others wrote."""

    mono_s: float
    utc: datetime


@dataclass(frozen=True, slots=True, order=True)
class GangKey:
    """One attempt of a job."""

    job_id: str
    attempt: int


@dataclass(frozen=True, slots=True, order=True)
class RankKey:
    """One rank of one attempt."""

    gang: GangKey
    rank: int


# Inputs: what happened.


@dataclass(frozen=True, slots=True)
class Leave:
    """The agent must stop: its ranks get `grace_s` seconds to save and exit."""

    reason: str
    grace_s: float


@dataclass(frozen=True, slots=True)
class HeartbeatAcked:
    """The bus has the heartbeat that was sent at `sent_mono_s` by this incarnation."""

    incarnation: str
    sent_mono_s: float


@dataclass(frozen=True, slots=True)
class Prepared:
    """Code, secrets and the checkpoint to resume from are on the node."""

    gang: GangKey


@dataclass(frozen=True, slots=True)
class PrepareFailed:
    """The gang cannot start here. `user_fault`: it never will, as it was submitted.

    `damaged_object`: the key of what is wrong with the checkpoint to start from.
    """

    gang: GangKey
    user_fault: bool
    message: str
    damaged_object: str | None = None


@dataclass(frozen=True, slots=True)
class StoreOpened:
    """The gang's TCPStore listens."""

    gang: GangKey


@dataclass(frozen=True, slots=True)
class StoreFailed:
    """The gang's TCPStore could not be opened."""

    gang: GangKey
    message: str


@dataclass(frozen=True, slots=True)
class RankSpawned:
    """The rank's process runs."""

    rank: RankKey
    pid: int


@dataclass(frozen=True, slots=True)
class SpawnFailed:
    """The system refused to start the rank's process."""

    rank: RankKey
    message: str


@dataclass(frozen=True, slots=True)
class RankExited:
    """The process and all it started are gone, and all it wrote was read.

    Exactly one of `code` and `signal` is given. `last_words` are redacted.
    """

    rank: RankKey
    code: int | None = None
    signal: int | None = None
    out_of_memory: bool = False
    last_words: str = ""


@dataclass(frozen=True, slots=True)
class NoSoundCopy:
    """A rank's checkpoint is damaged at this key, here and in the store."""

    rank: RankKey
    key: str


@dataclass(frozen=True, slots=True)
class RankMessage:
    """A message of a process of a rank, by its pid; its identity was checked."""

    rank: RankKey
    message: FromRank
    pid: int = 0


@dataclass(frozen=True, slots=True)
class ShardChecked:
    """A rank's part of a checkpoint lies on this node's disk as the rank said."""

    rank: RankKey
    ready: ShardReady


@dataclass(frozen=True, slots=True)
class Uploaded:
    """A rank's part of a checkpoint is in the store."""

    rank: RankKey
    written: CheckpointShardWritten


@dataclass(frozen=True, slots=True)
class UploadFailed:
    """A rank's part of a checkpoint did not get into the store."""

    rank: RankKey
    step: int
    message: str


@dataclass(frozen=True, slots=True)
class RankStacks:
    """The stacks of a rank, redacted. `missing`: why `text` is not all of them."""

    rank: RankKey
    pid: int
    state: str
    text: str = ""
    missing: str | None = None


@dataclass(frozen=True, slots=True)
class StacksTaken:
    """The stacks of a gang's ranks here, as far as they could be taken."""

    gang: GangKey
    found: tuple[RankStacks, ...]


@dataclass(frozen=True, slots=True)
class NodeChecked:
    """The node's check has ended. `failures`: clauses about what is wrong; () when it passed."""

    failures: tuple[str, ...]


EffectDone = (
    HeartbeatAcked
    | Prepared
    | PrepareFailed
    | StoreOpened
    | StoreFailed
    | RankSpawned
    | SpawnFailed
    | RankExited
    | ShardChecked
    | Uploaded
    | UploadFailed
    | StacksTaken
    | NodeChecked
)
Input = Received | Tick | Leave | NoSoundCopy | RankMessage | EffectDone


# Effects: the executor does them in this order.


@dataclass(frozen=True, slots=True)
class Publish:
    """Send an event, at least once. `identity` makes its id: equal for a repeated decision.

    Not `spooled`: now or not at all, since the disk may be what is wrong.
    """

    subject: str
    event: Event
    identity: tuple[str | int, ...]
    spooled: bool = True


@dataclass(frozen=True, slots=True)
class SendHeartbeat:
    """Send it now or not at all; its acknowledgement is a `HeartbeatAcked`."""

    heartbeat: WorkerHeartbeat


@dataclass(frozen=True, slots=True)
class Prepare:
    """Fetch what the gang needs: answered by Prepared or PrepareFailed."""

    gang: GangKey
    allocation: GangAllocated
    assignment: NodeAssignment


@dataclass(frozen=True, slots=True)
class OpenStore:
    """Open a fresh TCPStore there: answered by StoreOpened or StoreFailed."""

    gang: GangKey
    address: str
    port: int


@dataclass(frozen=True, slots=True)
class Spawn:
    """Start a rank: answered by RankSpawned or SpawnFailed, later by RankExited."""

    rank: RankKey
    local_rank: int


@dataclass(frozen=True, slots=True)
class TerminateRank:
    """Send SIGTERM to one process: `pid` if that is the rank's, else the one that was started."""

    rank: RankKey
    pid: int | None = None


@dataclass(frozen=True, slots=True)
class KillRank:
    """SIGKILL the rank's process and all it started."""

    rank: RankKey


@dataclass(frozen=True, slots=True)
class TakeStacks:
    """Read the stacks of these ranks, by pid, without stopping them: answered by StacksTaken."""

    gang: GangKey
    pids: Mapping[RankKey, int]


@dataclass(frozen=True, slots=True)
class SendControl:
    """Tell the rank."""

    rank: RankKey
    control: Control


@dataclass(frozen=True, slots=True)
class CheckShard:
    """Read what a rank has saved: answered by ShardChecked or UploadFailed."""

    rank: RankKey
    ready: ShardReady


@dataclass(frozen=True, slots=True)
class Upload:
    """Put a rank's shard and manifest into the store: answered by Uploaded or UploadFailed."""

    rank: RankKey
    ready: ShardReady


@dataclass(frozen=True, slots=True)
class CloseGang:
    """Free all that belongs to the gang. `final`: its job will not come back here."""

    gang: GangKey
    final: bool


@dataclass(frozen=True, slots=True)
class CheckNode:
    """See whether this machine works: answered by NodeChecked."""


@dataclass(frozen=True, slots=True)
class Note:
    """Something to log."""

    event: str
    gang: GangKey | None = None
    detail: str = ""


Effect = (
    Publish
    | SendHeartbeat
    | Prepare
    | OpenStore
    | Spawn
    | TerminateRank
    | KillRank
    | TakeStacks
    | SendControl
    | CheckShard
    | Upload
    | CloseGang
    | CheckNode
    | Note
)


# State.


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
    held_exit: WorkerExited | None = None  # not reported yet: see `Gang.awaits_commit`
    held_until_s: float = 0.0
    pace: Pace = field(default_factory=Pace)
    trouble: Trouble | None = None
    damaged_object: str | None = None  # the key of what it could not read of its checkpoint
    damaged: int = 0  # blocks of data that it said to be
    left_out: tuple[SampleRange, ...] = ()  # what it said that the next attempt goes without

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
        """Take what changed of its job; whether its ranks are to hear of it."""
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

        Its uploads are on their way. Or the job resumes elsewhere (`_GOES_ON`), and the rank's save
        is not committed: an attempt that began now would resume from an older step.
        """
        if rank.uploads:
            return True
        if self.stop not in _GOES_ON or rank.saved is None:
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
    def asks(self) -> bool:
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
        """All its ranks that can hear it."""
        return [
            SendControl(rank.key, self.control)
            for rank in self.ranks.values()
            if rank.connected and rank.alive
        ]
