"""The effects of the agent's decisions. The executor does them in the order given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gangline_schemas.base import Event
from gangline_schemas.events.heartbeats import WorkerHeartbeat
from gangline_schemas.events.scheduling import GangAllocated, NodeAssignment
from gangline_schemas.rank_protocol import Control, ShardReady

from .keys import GangKey, RankKey


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
class StoreOutputs:
    """Put the artifacts that the job left into the store: answered by OutputsStored."""

    rank: RankKey


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
    | StoreOutputs
    | CloseGang
    | CheckNode
    | Note
)
