"""The values of the state, all frozen."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from gangline_schemas.artifacts import Artifact
from gangline_schemas.events.faults import FailureCause
from gangline_schemas.events.pipelines import RunCause
from gangline_schemas.events.studies import BestTrial
from gangline_schemas.models import AliasedVersion, CheckpointOf


class StepState(StrEnum):
    """The states of a step. Those from `succeeded` on are ends."""

    PENDING = "pending"
    CHECKING = "checking"
    READY = "ready"
    RUNNING = "running"
    DEFERRED = "deferred"
    SUCCEEDED = "succeeded"
    CACHED = "cached"
    SKIPPED = "skipped"
    FAILED = "failed"
    BLOCKED = "blocked"
    CANCELLED = "cancelled"

    @property
    def ended(self) -> bool:
        """Whether it has ended."""
        return self in _ENDS

    @property
    def good(self) -> bool:
        """Whether its outputs are there."""
        return self in {StepState.SUCCEEDED, StepState.CACHED}


_ENDS = frozenset(
    {
        StepState.SUCCEEDED,
        StepState.CACHED,
        StepState.SKIPPED,
        StepState.FAILED,
        StepState.BLOCKED,
        StepState.CANCELLED,
    }
)


class RunState(StrEnum):
    """The states of a run. The last three are ends."""

    RUNNING = "running"
    STOPPING = "stopping"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def ended(self) -> bool:
        """Whether it has ended."""
        return self not in {RunState.RUNNING, RunState.STOPPING}


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A pipeline as configured. `paused`: why triggers start nothing; "" if they do.

    - `runs`: how many began. `failures`: triggered ones that failed in a row.
    - `queued`: runs that wait, by id. `active`: the run that has not ended, "" if none has.
    - `starts`: when triggered runs of the last day began.
    """

    team: str
    name: str
    revision: int
    user: str
    configured_at: datetime
    paused: str = ""
    runs: int = 0
    failures: int = 0
    queued: tuple[str, ...] = ()
    active: str = ""
    starts: tuple[datetime, ...] = ()


@dataclass(frozen=True, slots=True)
class Queued:
    """A run that waits."""

    team: str
    pipeline: str
    cause: RunCause
    user: str


@dataclass(frozen=True, slots=True)
class Run:
    """A run of a pipeline.

    - `left`: steps that have not ended. `live`: those with a job. `ready`:
      those that wait for room. `jobs`: requested so far.
    - `asked`, `checked`: the numbers of the last check of outputs that hits wait for, and that
      was made. `check_at`: not before then, since the store was away `check_tries` times.
    - `result`: how it ends, once it is known. `swept`: its outputs are not retained any more.
    """

    run_id: str
    team: str
    pipeline: str
    revision: int
    number: int
    cause: RunCause
    user: str
    started_at: datetime
    steps: int
    left: int
    state: RunState = RunState.RUNNING
    live: int = 0
    jobs: int = 0
    ready: tuple[str, ...] = ()
    asked: int = 0
    checked: int = 0
    check_tries: int = 0
    check_at: datetime | None = None
    gpu_seconds: float = 0.0
    retries: int = 0
    swept: bool = False
    result: str = ""
    reason: str = ""
    ended_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class StepRun:
    """A step of a run, or one item of its fan-out.

    - `tries`: jobs so far; `spared`: those before the run was retried.
    - `job_id`: its last job; of a hit, the one that made its outputs. `saved_step`: of its newest
      committed checkpoint, if another step starts from it; `saved_key`: of the commit record.
    - `hit`: the run that made its outputs, "" if its own job did. `check`: the check they wait for;
      with its own run as `hit`, its own job made them while outputs of the team were deleted.
    - `starts_from`: the version that its `resume: NAME@ALIAS` meant when it got its key.
    - `job_id`: of a study, its id until it has ended, then the job of its `best` trial.
    - `job_ended`: whether its job ended well; None while it has not. `last_attempt`: of that job,
      0 if it is not known. `written_by`: the attempt that wrote each of `outputs`, likewise.
    """

    state: StepState = StepState.PENDING
    key: str = ""
    parts: dict[str, str] = field(default_factory=dict)
    why: str = ""
    hit: str = ""
    check: int = 0
    outputs: dict[str, Artifact] = field(default_factory=dict)
    written_by: dict[str, int] = field(default_factory=dict)
    job_id: str = ""
    saved_step: int | None = None
    saved_key: str | None = None
    tries: int = 0
    spared: int = 0
    cause: FailureCause | None = None
    job_ended: bool | None = None
    job_ended_at: datetime | None = None
    last_attempt: int = 0
    reason: str = ""
    next_at: datetime | None = None
    gpu_seconds: float = 0.0
    charged: int = 0
    stopping: bool = False
    best: BestTrial | None = None
    starts_from: AliasedVersion | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Alias:
    """Where a protected alias points to; 0: to no version. A version of files has no checkpoint."""

    version: int = 0
    checkpoint: CheckpointOf | None = None


@dataclass(frozen=True, slots=True)
class Kept:
    """Outputs of a step by its key, and who made them; who used them last.

    `saved_key`: of the commit record of its newest checkpoint, if a step was to start from it.
    """

    outputs: dict[str, Artifact]
    run_id: str
    job_id: str
    at: datetime
    pipeline: str
    used_by: str
    used_at: datetime
    saved_key: str | None = None


@dataclass(frozen=True, slots=True)
class Sweep:
    """The last sweep of a team; until it has ended, none of its steps begins."""

    number: int
    begun_at: datetime
    ended_at: datetime | None = None

    @property
    def open(self) -> bool:
        """Whether it has not ended."""
        return self.ended_at is None


@dataclass(frozen=True, slots=True)
class DeleteOutputs:
    """The effect: delete a team's artifacts except these."""

    team: str
    keep: frozenset[str]


@dataclass(frozen=True, slots=True)
class Deleted:
    """The outcome: what was deleted; why not all, if so."""

    artifacts: int = 0
    objects: int = 0
    size_bytes: int = 0
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Last:
    """The key of a step of a pipeline when it was last made, for comparisons."""

    key: str
    parts: dict[str, str]
    run_id: str


@dataclass(frozen=True, slots=True)
class CheckOutputs:
    """The effect: see whether these artifacts of a team are in the store and whole.

    And whether the commit records of checkpoints are there (`saves`).
    """

    team: str
    digests: tuple[str, ...]
    saves: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Checked:
    """The outcome: the ones that are not."""

    missing: tuple[str, ...]
    gone: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StoreAway:
    """The outcome: the store did not answer."""

    reason: str
