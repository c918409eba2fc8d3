"""gangline.registry: gates, versions, evidence, verdicts, aliases and drift."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from gangline_schemas.base import Event, Identifier, Timestamp
from gangline_schemas.data_use import SnapshotName
from gangline_schemas.gate_file import Gate
from gangline_schemas.limits import (
    Count,
    Few,
    Label,
    Message,
    RequestCeId,
    RequestCeSource,
    Step,
    User,
)
from gangline_schemas.models import (
    COLUMNS_SHOWN,
    AliasName,
    CheckpointOf,
    ColumnDrift,
    Digest,
    Evaluation,
    Finding,
    MaybeVersion,
    ModelName,
    MoveKind,
    Override,
    ProfileRef,
    ServingReport,
    SuiteComparison,
    SuiteName,
    Verdict,
    Version,
)

FINDINGS = 200
"""Conditions of one gate: its suites, its serving limits and its approvals."""


class Answering(Event):
    """The base of events that may answer a request."""

    request_id: RequestCeId = ""
    request_source: RequestCeSource = ""


class OfModel(Answering):
    """The base of events about one model."""

    team: Identifier
    model: ModelName


class RegistryRefused(Answering):
    """A request was refused, and why."""

    type: ClassVar[str] = "model.request.refused"
    team: Identifier
    reason: Message
    user: User = ""


class PromotedNoted(Event):
    """A checkpoint was promoted, so it can be registered."""

    type: ClassVar[str] = "model.checkpoint.noted"
    checkpoint: CheckpointOf


class PromotedGone(Event):
    """A promoted checkpoint was deleted or is damaged: it cannot be registered any more."""

    type: ClassVar[str] = "model.checkpoint.gone"
    job_id: Identifier
    step: Step


class GateSet(Answering):
    """From here on this gate decides about its model's aliases."""

    type: ClassVar[str] = "model.gate.set"
    config: Gate
    digest: Digest
    user: User


class GateRemoved(OfModel):
    """The aliases of the model are not protected any more. Their history is kept."""

    type: ClassVar[str] = "model.gate.removed"
    user: User


class VersionBegun(OfModel):
    """MLflow is asked for a version of this checkpoint, or for the version that it has."""

    type: ClassVar[str] = "model.version.begun"
    registration: Few = Field(description="Its number; counts up.")
    checkpoint: CheckpointOf | None = None
    version: Version | None = Field(
        default=None,
        description="The version of the checkpoint so far: MLflow makes another if it lost this "
        "one. Without a checkpoint: the version that MLflow must have.",
    )
    snapshot: SnapshotName | None = None
    description: Message = ""
    user: User


class VersionRegistered(OfModel):
    """The version is known here by the number that MLflow gave it."""

    type: ClassVar[str] = "model.version.registered"
    registration: Few
    version: Version
    replaces: bool = Field(
        default=False,
        description="MLflow counts from 1 again, since the model was deleted there: all that was "
        "known of another version of this number is forgotten.",
    )


class VersionRefused(OfModel):
    """MLflow has no such version, or does not take it."""

    type: ClassVar[str] = "model.version.refused"
    registration: Few
    reason: Message


class EvaluationReported(OfModel):
    """The scores of a version in a suite."""

    type: ClassVar[str] = "evaluation.reported"
    version: Version
    suite: SuiteName
    evaluation: Evaluation
    user: User


class EvaluationCompared(OfModel):
    """The scores of two versions in a suite, item by item."""

    type: ClassVar[str] = "evaluation.compared"
    version: Version
    baseline: Version
    comparison: SuiteComparison


class ServingReported(OfModel):
    """The needs of a version that serves: size, latency, memory."""

    type: ClassVar[str] = "model.serving.reported"
    version: Version
    serving: ServingReport
    user: User


class VersionApproved(OfModel):
    """A person approved a version."""

    type: ClassVar[str] = "model.version.approved"
    version: Version
    user: User
    comment: Message = ""


class PromotionBegun(OfModel):
    """A version is to get an alias; its evidence is looked at."""

    type: ClassVar[str] = "promotion.begun"
    promotion: Few = Field(description="Its number; counts up.")
    version: Version
    alias: AliasName
    expected: MaybeVersion = Field(description="The version that the alias points to; 0: none.")
    override: Override | None = None
    user: User


class PromotionJudged(OfModel):
    """The verdict of the gate. Only `pass`, or an override, moves the alias."""

    type: ClassVar[str] = "promotion.judged"
    promotion: Few
    version: Version
    alias: AliasName
    baseline: MaybeVersion
    gate: Digest
    verdict: Verdict
    findings: tuple[Finding, ...] = Field(default=(), max_length=FINDINGS)


class AliasMoved(OfModel):
    """An alias points to another version."""

    type: ClassVar[str] = "alias.moved"
    alias: AliasName
    number: Few = Field(description="Of all moves; counts up.")
    from_version: MaybeVersion
    to_version: Version
    expected: MaybeVersion
    kind: MoveKind
    by: User
    reason: Message = ""
    evidence: Few | None = Field(default=None, description="The promotion that was judged.")
    checkpoint: CheckpointOf | None = Field(
        default=None, description="Of the version it points to now; null: it is made of files."
    )


class AliasesProjected(Event):
    """MLflow's table has all protected aliases as they were after this many changes."""

    type: ClassVar[str] = "alias.projected"
    changes: Count
    missing: tuple[Label, ...] = Field(
        default=(), max_length=100, description="MLflow has no such version: TEAM/MODEL/VERSION."
    )


class AliasRepaired(OfModel):
    """MLflow's table said otherwise, and was set right."""

    type: ClassVar[str] = "alias.repaired"
    alias: AliasName
    found: MaybeVersion = Field(description="0: the alias was not there.")
    version: MaybeVersion


class RegistryDeferred(Event):
    """MLflow or the object store was away: what was to be done is tried again then."""

    type: ClassVar[str] = "model.effect.deferred"
    effect: str = Field(max_length=1024)
    tries: Few = Field(ge=1)
    reason: Message
    next_at: Timestamp


class ProfileNoted(Answering):
    """A snapshot of data has this profile."""

    type: ClassVar[str] = "model.snapshot.profiled"
    team: Identifier
    snapshot: SnapshotName
    profile: ProfileRef
    user: User


class _OfData(OfModel):
    alias: AliasName
    version: Version
    baseline: SnapshotName = Field(description="The snapshot that the version was trained on.")
    snapshot: SnapshotName


class DriftFound(_OfData):
    """A snapshot differs from the one that the champion was trained on.

    It is said once for each version that gets the alias, and snapshot.
    """

    type: ClassVar[str] = "drift.found"
    columns: tuple[ColumnDrift, ...] = Field(min_length=1, max_length=COLUMNS_SHOWN)
    found: Few = Field(description="Columns that moved.")


class DriftAbsent(_OfData):
    """A snapshot is like the one that the champion was trained on."""

    type: ClassVar[str] = "drift.absent"


class DriftUnknown(_OfData):
    """The two profiles cannot be compared."""

    type: ClassVar[str] = "drift.unknown"
    reason: Message


class DataAged(OfModel):
    """The champion's data are older than the gate allows. It is said once of each version."""

    type: ClassVar[str] = "model.data.aged"
    alias: AliasName
    version: Version
    snapshot: SnapshotName
    made_at: Timestamp
    limit_days: float = Field(gt=0, le=36_500)
