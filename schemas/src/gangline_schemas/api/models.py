"""Registered models: versions with their evidence, aliases, verdicts, drift, lineage."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Self

from pydantic import ConfigDict, Field, JsonValue, model_validator

from gangline_schemas.api.base import OPEN_WORD, OR_NONE, Answer, Body
from gangline_schemas.api.incidents import Incident
from gangline_schemas.api.runs import Run
from gangline_schemas.base import Identifier, Timestamp
from gangline_schemas.data_use import SnapshotName
from gangline_schemas.gate_file import Gate
from gangline_schemas.limits import Label, Message, Name, Step
from gangline_schemas.models import (
    MAX_ITEMS,
    CheckpointOf,
    ColumnDrift,
    Evaluation,
    Finding,
    ItemId,
    ItemScore,
    MaybeVersion,
    MoveKind,
    Override,
    ServingReport,
    SuiteName,
    Verdict,
    Version,
)
from gangline_schemas.profile import Profile

_PROMOTION: dict[str, JsonValue] = {"version": 4, "expected": 3}


class Alias(Answer):
    """A protected alias."""

    alias: str
    version: int = Field(description="0: it points to no version yet.")
    since: datetime | None
    rollback_to: int | None = Field(description="Where a rollback leads.")
    drift: int = Field(description="Columns that moved, in the newest snapshots of its data.")
    aged: bool = Field(description="The data of its version are older than the gate allows.")
    data_unknown: str = Field(
        default="", description="Why its gate cannot watch the age and drift of its data."
    )


class ModelRow(Answer):
    """A model as lists show it."""

    team: str
    model: str
    aliases: list[Alias]
    has_gate: bool
    versions: int
    newest_version: int | None
    waiting: int = Field(description="Promotions that are not judged yet.")


class ModelList(Answer):
    """Models of the caller's teams, by team and name."""

    models: list[ModelRow]


class ApprovalRow(Answer):
    """A person's approval."""

    user: str
    comment: str
    at: datetime
    counts: bool = Field(description="Whether the gate counts it.")


class VersionRow(Answer):
    """A version with its evidence."""

    version: int
    checkpoint: CheckpointOf | None
    snapshot: str | None
    description: str
    user: str
    registered_at: datetime
    aliases: list[str]
    evaluations: dict[str, Evaluation]
    serving: ServingReport | None
    approvals: list[ApprovalRow]
    lost: bool = Field(description="MLflow does not have it any more.")


class Promotion(Answer):
    """A wish to move an alias, with its verdict once there is one."""

    promotion: int
    version: int
    alias: str
    expected: int = Field(description="The version that the alias pointed to; 0: none.")
    baseline: int
    user: str
    override: Override | None
    verdict: Annotated[Verdict, OPEN_WORD] | None = Field(
        description="null while scores are compared."
    )
    findings: list[Finding]
    moved: bool
    begun_at: datetime
    judged_at: datetime | None


class Move(Answer):
    """A move of an alias."""

    number: int
    alias: str
    from_version: int
    to_version: int
    kind: Annotated[MoveKind, OPEN_WORD]
    by: str
    reason: str
    promotion: int | None = Field(description="That was judged for it.")
    at: datetime


class MoveList(Answer):
    """Moves, the newest first."""

    moves: list[Move]


class ModelDetail(ModelRow):
    """A model with everything about it."""

    gate: Annotated[Gate | None, OR_NONE]
    gate_user: str
    gate_since: datetime | None
    version_list: list[VersionRow] = Field(description="The newest first.")
    promotions: list[Promotion] = Field(description="The newest first.")
    moves: list[Move] = Field(description="The newest first.")
    catalogue_behind: bool = Field(description="MLflow does not show the newest moves yet.")


class Check(Answer):
    """The verdict of the gate now. Nothing moves."""

    version: int
    alias: str
    baseline: int
    verdict: Annotated[Verdict, OPEN_WORD]
    findings: list[Finding]
    comparing: int = Field(description="Comparisons of scores that are not done yet.")


class DataCheck(Answer):
    """The newest snapshot of a data set against the one that a version was trained on."""

    dataset: str
    snapshot: str
    baseline: str
    at: datetime
    found: int = Field(description="Columns that moved.")
    columns: list[ColumnDrift] = Field(description="The farthest first.")
    unknown: str = Field(description="Why they could not be compared.")


class Drift(Answer):
    """The data of an alias's version: their age, and later snapshots."""

    alias: str
    version: int
    snapshot: str | None
    profiled: bool = Field(description="Its snapshot has a profile, so others can be compared.")
    made_at: datetime | None
    age_days: float | None
    limit_days: float | None
    aged: bool
    data_unknown: str = Field(
        default="", description="Why neither age nor drift of its data are known."
    )
    checks: list[DataCheck]


class SnapshotLineage(Answer):
    """The data that a version was trained on."""

    snapshot: str
    profile: str | None = Field(description="sha256 of its profile.")
    rows: int | None
    made_at: datetime | None
    place: str = Field(default="", description="Where it is, as it was announced.")
    sources: list[str] = Field(default=[], description="The data that it was made of.")


class Lineage(Answer):
    """Where an alias's version comes from, in one answer.

    Parts that are not known are null: of a version without a checkpoint, its run.
    """

    team: str
    model: str
    alias: str
    version: int
    move: Move | None = Field(description="The one that brought it here.")
    promotion: Promotion | None = Field(description="The verdict behind that move.")
    checkpoint: CheckpointOf | None
    run: Run | None = Field(description="With attempts, restarts, GPU-seconds and cost.")
    incidents: list[Incident] = Field(description="Failures of the run, the newest first.")
    code_ref: str | None
    code_bundle: str | None
    code_diff: str | None = Field(description="Its sha256.")
    image: str | None
    command: list[str]
    hyperparameters: dict[str, JsonValue]
    seed: int | None
    snapshot: SnapshotLineage | None


class VersionBody(Body):
    """A promoted checkpoint of a job, or a version that MLflow has."""

    job_id: Identifier | None = None
    step: Step | None = Field(default=None, description="Default: the newest promoted one.")
    version: Version | None = None
    snapshot: SnapshotName | None = Field(
        default=None, description="Default: the job's data_snapshot, or its input that is `data`."
    )
    description: Message = ""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.job_id is None) == (self.version is None):
            raise ValueError("give job_id or version, and not both")
        return self


class EvaluationBody(Body):
    """Scores of a version in a suite, by item. Higher is better."""

    suite: SuiteName
    scores: dict[ItemId, ItemScore] = Field(min_length=1, max_length=MAX_ITEMS)
    job_id: Identifier | None = Field(default=None, description="The job that measured them.")
    details: dict[Name, Label] = Field(default_factory=dict, max_length=32)


class ApprovalBody(Body):
    """A person's approval."""

    comment: Message = ""


class PromotionBody(Body):
    """The version that an alias will point to."""

    model_config = ConfigDict(json_schema_extra={"examples": [_PROMOTION]})
    version: Version
    expected: MaybeVersion | None = Field(
        default=None, description="Refused unless the alias points to it; 0: to nothing."
    )
    override: Override | None = Field(default=None, description="Moves whatever the gate says.")


class RollbackBody(Body):
    """Where an alias goes back to; default: the version before."""

    to: Version | None = None
    expected: MaybeVersion | None = None
    reason: Message = ""


class ProfileBody(Body):
    """A profile of a snapshot of data, as `gangline data profile` makes it."""

    snapshot: SnapshotName
    profile: Profile
    made_at: Timestamp = Field(description="When the data were made.")
    serving: bool = False


class ProfileRow(Answer):
    """A snapshot that has a profile."""

    team: str
    snapshot: str
    digest: str
    rows: int
    columns: int
    made_at: datetime
    serving: bool


class ProfileList(Answer):
    """Snapshots with profiles, the newest first."""

    profiles: list[ProfileRow]
