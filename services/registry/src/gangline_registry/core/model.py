"""The values in the registry's state, and the effects that it asks for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from gangline_schemas.gate_file import DriftLimits, Gate
from gangline_schemas.models import (
    CheckpointOf,
    ColumnDrift,
    Evaluation,
    Finding,
    MoveKind,
    Override,
    ProfileRef,
    ServingReport,
    SuiteComparison,
    Verdict,
)


def model_key(team: str, model: str) -> str:
    """The key of a model."""
    return f"{team}/{model}"


def version_key(team: str, model: str, version: int) -> str:
    """The key of a version."""
    return f"{team}/{model}/{version}"


def alias_key(team: str, model: str, alias: str) -> str:
    """The key of an alias."""
    return f"{team}/{model}/{alias}"


@dataclass(frozen=True, slots=True)
class GatedModel:
    """A model with a gate."""

    gate: Gate
    digest: str
    user: str
    since: datetime


@dataclass(frozen=True, slots=True)
class Approval:
    """A person's approval."""

    user: str
    comment: str
    at: datetime


def comparison_key(suite: str, baseline: str) -> str:
    """The key of a comparison, of the suite and the digest of the baseline's scores."""
    return f"{suite}:{baseline[:16]}"


@dataclass(frozen=True, slots=True)
class Registered:
    """A version that is known here. `comparisons` are by suite and baseline (`comparison_key`)."""

    team: str
    model: str
    version: int
    checkpoint: CheckpointOf | None
    snapshot: str | None
    user: str
    description: str
    at: datetime
    evaluations: Mapping[str, Evaluation] = field(default_factory=dict)
    comparisons: Mapping[str, SuiteComparison] = field(default_factory=dict)
    serving: ServingReport | None = None
    approvals: tuple[Approval, ...] = ()


@dataclass(frozen=True, slots=True)
class Pointer:
    """Where a protected alias points to. `before`: where a rollback leads, the nearest last."""

    version: int = 0
    before: tuple[int, ...] = ()
    since: datetime | None = None


@dataclass(frozen=True, slots=True)
class Move:
    """A move of an alias."""

    number: int
    team: str
    model: str
    alias: str
    from_version: int
    to_version: int
    kind: MoveKind
    by: str
    reason: str
    evidence: int | None
    at: datetime


@dataclass(frozen=True, slots=True)
class Promotion:
    """A wish to move an alias, and the verdict once there is one."""

    number: int
    team: str
    model: str
    version: int
    alias: str
    expected: int
    user: str
    begun_at: datetime
    override: Override | None = None
    baseline: int = 0
    gate: str = ""
    verdict: Verdict | None = None
    findings: tuple[Finding, ...] = ()
    judged_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Registration:
    """A version that MLflow is asked for."""

    number: int
    team: str
    model: str
    checkpoint: CheckpointOf | None
    version: int | None
    snapshot: str | None
    user: str
    description: str
    request: str


@dataclass(frozen=True, slots=True)
class Deferred:
    """An effect that failed. A new process tries it at once."""

    tries: int
    reason: str
    next_at: datetime
    at: datetime


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a request: refused for a reason, or the number of what it began."""

    refused: str = ""
    number: int = 0
    done: bool = True


@dataclass(frozen=True, slots=True)
class Profiled:
    """A snapshot with its profile."""

    team: str
    snapshot: str
    profile: ProfileRef
    at: datetime


@dataclass(frozen=True, slots=True)
class DataJudgement:
    """The data of a version against a later snapshot. No columns: no drift."""

    version: int
    baseline: str
    snapshot: str
    at: datetime
    columns: tuple[ColumnDrift, ...] = ()
    found: int = 0
    unknown: str = ""


# Effects and their results


@dataclass(frozen=True, slots=True)
class MakeVersion:
    """Have MLflow make the version, unless it did; or look whether it has it."""

    registration: Registration


@dataclass(frozen=True, slots=True)
class Made:
    """MLflow has the version."""

    version: int


@dataclass(frozen=True, slots=True)
class Compare:
    """Compare the scores of two versions in a suite."""

    team: str
    model: str
    version: int
    baseline_version: int
    suite: str
    candidate: Evaluation
    baseline: Evaluation
    confidence: float
    seed: int
    resamples: int


@dataclass(frozen=True, slots=True)
class Compared:
    """The comparison."""

    comparison: SuiteComparison


@dataclass(frozen=True, slots=True)
class Protected:
    """An alias as MLflow's table should have it. `keep`: versions that may not be deleted."""

    team: str
    model: str
    alias: str
    version: int
    keep: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Project:
    """Bring MLflow's table to these aliases."""

    changes: int
    aliases: tuple[Protected, ...]


@dataclass(frozen=True, slots=True)
class Projected:
    """The aliases that were otherwise, with the version that was found; versions not there."""

    repaired: tuple[tuple[str, str, str, int], ...] = ()
    missing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CompareProfiles:
    """Compare a snapshot with the one that a version was trained on."""

    team: str
    model: str
    alias: str
    version: int
    baseline: Profiled
    snapshot: Profiled
    limits: DriftLimits


@dataclass(frozen=True, slots=True)
class ProfilesCompared:
    """The columns that moved, the farthest first."""

    columns: tuple[ColumnDrift, ...]


@dataclass(frozen=True, slots=True)
class Failed:
    """It was not done.

    `final`: another try would fail as well. `until_restart`: so would it in this process.
    """

    reason: str
    final: bool = False
    until_restart: bool = False


# Soft state


@dataclass(slots=True)
class Watch:
    """The soft state, which a new process may lose.

    - `began`, `now`: the times of the first and the last Tick.
    - `round`: how often MLflow's table was looked at again.
    - `scores`, `data`: the comparisons that each model's state asks for, by model and key: of
      evaluations, and of profiles.
    - `newest`: the newest profile of each data set; None: they were not looked at yet.
    - `table`: all protected aliases as of `changes`, as MLflow should have them.
    """

    began: datetime | None = None
    now: datetime | None = None
    round: int = 0
    looked_at: datetime | None = None
    scores: dict[str, dict[str, Compare]] = field(default_factory=dict)
    data: dict[str, dict[str, CompareProfiles]] = field(default_factory=dict)
    newest: dict[str, str] | None = None
    table: tuple[Protected, ...] = ()
    changes: int = -1
