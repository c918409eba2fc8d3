"""The values that the checkpoint service thinks in."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, NamedTuple

from gangline_checkpoints.core.policy.interval import Failures, Save
from gangline_checkpoints.core.policy.ranks import Runs, holds
from gangline_schemas.checkpoint_policy import Retention
from gangline_schemas.events.scheduling import CheckpointRef
from gangline_schemas.events.workers import CheckpointShardWritten
from gangline_schemas.job import JobSpec


class StepId(NamedTuple):
    """One checkpoint of a job. Sorts by attempt, then step: a later attempt is always newer."""

    attempt: int
    step: int


@dataclass(frozen=True, slots=True)
class Open:
    """A checkpoint that is not committed yet. The reports of its ranks are soft (reports.py).

    `places` are the offsets in gangline.workers from which on its reports lie, by partition.
    `saved`: all parts lie on their nodes' disks. `written`: the number of parts, once all are in
    the store; 0: not all are.
    """

    opened_at: datetime
    places: dict[int, int] = field(default_factory=dict)
    saved: bool = False
    written: int = 0


@dataclass(frozen=True, slots=True)
class Kept:
    """A committed checkpoint. `healthy` until its bytes were found to differ.

    `promoted` since a run validated it; `pinned` while a user wants to retain it. `refers` are the
    earlier steps of its attempt in whose objects chunks of it lie.
    """

    id: StepId
    world_size: int
    metrics: dict[str, float]
    healthy: bool = True
    promoted: bool = False
    pinned: bool = False
    refers: tuple[int, ...] = ()

    @property
    def attempt(self) -> int:
        """The attempt that saved it."""
        return self.id.attempt

    @property
    def step(self) -> int:
        """The step that it was saved after."""
        return self.id.step


@dataclass(slots=True)
class Job:
    """A job's checkpoints. `attempt` 0: only parts came so far, and no gang.allocated.

    - `kept` in the order of commits, which is the order of their ids.
    - `resume`: the newest attempt's start, until it has a checkpoint of its own or the job ends:
      after an early failure the next attempt starts there again.
    - `restored`: the start of the next attempt, chosen by a user.
    - `known`: the checkpoint of its own that the scheduler named last; None: none yet. It may start
      an attempt from this one as long as it names no other.
    - `full_every` above 1: its saves refer to earlier ones; each so many-th is full.
    - `verifying`: the one open checkpoint whose verification runs: one at a time, oldest first, so
      that a job's commits come in order.
    - `deleting` counts how often the deletion was requested.
    - `closed` remembers the known parts of abandoned and deleted checkpoints, bounded.
    - `saves`: the costs of the newest saves at this world size. `failures`: the ends of its
      attempts. `advised_s`: this attempt's advised interval, None: none yet. `suspected_at`: the
      time of the sign that makes it shorter.
    - `spec` is set if checkpoints are to be promoted. `requested`: the last one whose
      validation was requested; `commits_since_request` counts the commits since.
    - `validates`: the checkpoint that this run validates, until it is decided.
    - `cpu_only`: it has no GPUs.
    """

    attempt: int = 0
    world_size: int = 0
    prefix: str = ""
    keep: Retention = field(default_factory=Retention)
    full_every: int = 1
    resume: CheckpointRef | None = None
    restored: CheckpointRef | None = None
    known: StepId | None = None
    live: bool = False
    final: bool = False
    ended_at: datetime | None = None
    open: dict[StepId, Open] = field(default_factory=dict)
    kept: list[Kept] = field(default_factory=list)
    verifying: StepId | None = None
    verify_tries: int = 0
    deleting: dict[StepId, int] = field(default_factory=dict)
    closed: dict[StepId, Runs] = field(default_factory=dict)
    allocated_at: datetime | None = None
    saves: tuple[Save, ...] = ()
    failures: Failures = field(default_factory=Failures)
    advised_s: float | None = None
    suspected_at: datetime | None = None
    spec: JobSpec | None = None
    succeeded: bool = False
    commits_since_request: int = 0
    requested: StepId | None = None
    validates: CheckpointRef | None = None
    cpu_only: bool = False

    def copied(self) -> Job:
        """Another one that changes by itself. Open and kept checkpoints are only replaced."""
        return replace(
            self,
            open=dict(self.open),
            kept=list(self.kept),
            deleting=dict(self.deleting),
            closed=dict(self.closed),
        )

    @property
    def newest(self) -> StepId | None:
        """The newest committed checkpoint."""
        return self.kept[-1].id if self.kept else None

    def keeps(self, step_id: StepId) -> bool:
        """Whether this checkpoint is committed and not deleted."""
        return any(kept.id == step_id for kept in self.kept)

    def knew(self, step_id: StepId, rank: int) -> bool:
        """Whether the rank's part of a checkpoint that was given up or deleted was reported."""
        return holds(self.closed.get(step_id, ()), rank)

    def kept_with(self, *ids: StepId, **changes: Any) -> list[Kept]:
        """The `kept` checkpoints, with these fields of these checkpoints changed."""
        return [replace(kept, **changes) if kept.id in ids else kept for kept in self.kept]


@dataclass(frozen=True, slots=True)
class Verify:
    """Effect: read everything, compare, then put the commit record. `shards` are by rank."""

    job_id: str
    prefix: str
    id: StepId
    world_size: int
    shards: tuple[CheckpointShardWritten, ...]
    tries: int


@dataclass(frozen=True, slots=True)
class Delete:
    """Effect: remove all objects of one checkpoint."""

    job_id: str
    prefix: str
    id: StepId
    tries: int


@dataclass(frozen=True, slots=True)
class Scrub:
    """Effect: read everything of a committed checkpoint again, slowly, and compare."""

    job_id: str
    prefix: str
    id: StepId
    world_size: int


@dataclass(frozen=True, slots=True)
class Survey:
    """Effect: name the checkpoints of an ended job that have objects in the store."""

    job_id: str
    prefix: str


Work = Verify | Delete
Effect = Work | Scrub | Survey


@dataclass(frozen=True, slots=True)
class Verified:
    """The bytes are right and the commit record is in the store.

    If it `refers` to earlier steps, `size_bytes` are of its own objects alone, and `whole_bytes`
    what a whole one would have.
    """

    size_bytes: int
    objects: int
    verify_s: float
    whole_bytes: int | None = None
    refers: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Corrupt:
    """An object is missing or is not what its rank wrote."""

    key: str
    reason: str


@dataclass(frozen=True, slots=True)
class Refused:
    """The bytes are as written, but they are no checkpoint."""

    reason: str


@dataclass(frozen=True, slots=True)
class Scrubbed:
    """The bytes are still as they were written."""

    size_bytes: int
    read_s: float


@dataclass(frozen=True, slots=True)
class Removed:
    """The objects are gone."""

    objects: int


@dataclass(frozen=True, slots=True)
class Found:
    """The checkpoints with objects in the store, whole or not."""

    ids: tuple[StepId, ...]


@dataclass(frozen=True, slots=True)
class Away:
    """The store did not answer. Nothing is known; try again."""

    reason: str


Outcome = Verified | Corrupt | Refused | Scrubbed | Removed | Found | Away


def verify_key(job_id: str, step_id: StepId, tries: int) -> str:
    """Key of a verification; another try is another key, so that the loop starts it again."""
    return f"verify:{job_id}:{step_id.attempt}:{step_id.step}:{tries}"


def delete_key(job_id: str, step_id: StepId, tries: int) -> str:
    """Key of a deletion."""
    return f"delete:{job_id}:{step_id.attempt}:{step_id.step}:{tries}"


def scrub_key(job_id: str, step_id: StepId) -> str:
    """Key of reading again; there is one at a time."""
    return f"scrub:{job_id}:{step_id.attempt}:{step_id.step}"


def survey_key(job_id: str) -> str:
    """Key of a survey; there is one for each end of a job."""
    return f"survey:{job_id}"


def merged_metrics(shards: tuple[CheckpointShardWritten, ...]) -> dict[str, float]:
    """The ranks' metrics; where several report one, the lowest rank's counts."""
    found: dict[str, float] = {}
    for shard in reversed(shards):
        found |= shard.metrics
    return found
