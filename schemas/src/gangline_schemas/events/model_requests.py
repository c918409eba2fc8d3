"""Requests about registered models and profiles of data. The gateway writes them."""

from __future__ import annotations

from typing import ClassVar, Self

from pydantic import Field, model_validator

from gangline_schemas.base import Event, Identifier
from gangline_schemas.data_use import SnapshotName
from gangline_schemas.gate_file import Gate
from gangline_schemas.limits import Message, Step, User
from gangline_schemas.models import (
    AliasName,
    Evaluation,
    MaybeVersion,
    ModelName,
    Override,
    ProfileRef,
    ServingReport,
    SuiteName,
    Version,
)


class ModelRequest(Event):
    """The base of requests about one model."""

    team: Identifier
    model: ModelName
    user: User = "unknown"


class GateRequested(Event):
    """Protect aliases of a model by this gate, or replace its gate."""

    type: ClassVar[str] = "model.gate.requested"
    config: Gate
    user: User = "unknown"


class GateRemovalRequested(ModelRequest):
    """Protect the aliases of a model no longer; MLflow's clients may move them again."""

    type: ClassVar[str] = "model.gate.removal.requested"


class VersionRequested(ModelRequest):
    """Register a promoted checkpoint, or a version that MLflow has already."""

    type: ClassVar[str] = "model.version.requested"
    job_id: Identifier | None = None
    step: Step | None = Field(default=None, description="None: the newest promoted checkpoint.")
    version: Version | None = Field(default=None, description="A version that MLflow has.")
    snapshot: SnapshotName | None = Field(default=None, description="That it was trained on.")
    description: Message = ""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.job_id is None) == (self.version is None):
            raise ValueError("give a job_id or a version, and not both")
        return self


class EvaluationRequested(ModelRequest):
    """A version was evaluated in a suite. A later report of the suite replaces it."""

    type: ClassVar[str] = "model.evaluation.requested"
    version: Version
    suite: SuiteName
    evaluation: Evaluation


class ServingRequested(ModelRequest):
    """A version was exported and measured."""

    type: ClassVar[str] = "model.serving.requested"
    version: Version
    serving: ServingReport


class ApprovalRequested(ModelRequest):
    """A person approves a version."""

    type: ClassVar[str] = "model.approval.requested"
    version: Version
    comment: Message = ""


class ModelPromotionRequested(ModelRequest):
    """Move an alias to a version, if its gate passes it."""

    type: ClassVar[str] = "model.promotion.requested"
    version: Version
    alias: AliasName
    expected: MaybeVersion | None = Field(
        default=None, description="Refused unless the alias points to it now. None: not checked."
    )
    override: Override | None = None


class RollbackRequested(ModelRequest):
    """Move an alias back to the version before the present one, or to `to`."""

    type: ClassVar[str] = "model.rollback.requested"
    alias: AliasName
    to: Version | None = None
    expected: MaybeVersion | None = None
    reason: Message = ""


class SnapshotProfiled(Event):
    """A snapshot of data has this profile."""

    type: ClassVar[str] = "snapshot.profiled"
    team: Identifier
    snapshot: SnapshotName
    profile: ProfileRef
    user: User = "unknown"
