"""The inputs of the agent's decisions: events, time, messages and the ends of effects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gangline_bus.codec import Received
from gangline_bus.decision import Tick
from gangline_schemas.artifacts import Artifact
from gangline_schemas.events.workers import CheckpointShardWritten
from gangline_schemas.rank_protocol import FromRank, ShardReady

from .keys import GangKey, RankKey


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

    Exactly one of `code` and `signal` is given. `last_words` are redacted. `gpu_memory_taken`: it
    ran out of GPU memory that a process of no rank of its gang has.
    """

    rank: RankKey
    code: int | None = None
    signal: int | None = None
    out_of_memory: bool = False
    gpu_memory_taken: bool = False
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
class OutputsStored:
    """The artifacts of a job are in the store. `problem`: why they are not.

    `user_fault`: the job did not leave what it was to leave.
    """

    rank: RankKey
    outputs: Mapping[str, Artifact] = field(default_factory=dict)
    problem: str = ""
    user_fault: bool = False


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


RankInput = (
    RankSpawned
    | SpawnFailed
    | RankMessage
    | NoSoundCopy
    | ShardChecked
    | Uploaded
    | UploadFailed
    | OutputsStored
    | RankExited
)
Input = (
    Received
    | Tick
    | Leave
    | HeartbeatAcked
    | Prepared
    | PrepareFailed
    | StoreOpened
    | StoreFailed
    | StacksTaken
    | NodeChecked
    | RankInput
)
