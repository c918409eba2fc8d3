"""`gate.yaml`: the conditions under which an alias of a model may move to another version."""

from __future__ import annotations

import hashlib
from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, ValidationError, field_validator, model_validator

from gangline_schemas.base import Identifier, Model, field_errors
from gangline_schemas.data_use import DatasetName
from gangline_schemas.job_file import JobFileError, read_document
from gangline_schemas.limits import Bytes, Few, Name, Ratio, Score, Seconds, User
from gangline_schemas.models import (
    MAX_ITEMS,
    MAX_SUITES,
    MOST_VERSIONS,
    AliasName,
    Confidence,
    ModelName,
    SuiteName,
    Version,
)


class Importance(StrEnum):
    """How much a suite decides."""

    CRITICAL = "critical"
    SUPPORTING = "supporting"
    INFORMATIONAL = "informational"


class SuiteClaim(StrEnum):
    """The claim that must be shown against the baseline."""

    BETTER = "better"
    NOT_WORSE = "not_worse"


class SuiteRule(Model):
    """The rule of one suite."""

    importance: Importance = Importance.CRITICAL
    rule: SuiteClaim | None = Field(default=None, description="None: `at_least` alone decides.")
    margin: Annotated[float, Field(ge=0, le=1e9)] = Field(
        default=0.0, description="Of `not_worse`: so much lower than the baseline is accepted."
    )
    confidence: Confidence | None = Field(default=None, description="None: the gate's.")
    min_items: int = Field(default=100, ge=1, le=MAX_ITEMS)
    at_least: Score | None = Field(default=None, description="The mean must be this or more.")
    required: bool | None = Field(
        default=None, description="Missing evidence is inconclusive. None: if it is critical."
    )

    @property
    def is_required(self) -> bool:
        """Whether its evidence must be there."""
        if self.required is not None:
            return self.required
        return self.importance is Importance.CRITICAL

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.rule is None and self.at_least is None:
            if self.importance is not Importance.INFORMATIONAL:
                raise ValueError("give a rule (better or not_worse), at_least, or both")
        elif self.rule is SuiteClaim.NOT_WORSE and not self.margin:
            raise ValueError("not_worse needs a margin above 0, such as 0.01")
        elif self.rule is not SuiteClaim.NOT_WORSE and self.margin:
            raise ValueError("a margin belongs to not_worse")
        return self


class ServingLimits(Model):
    """Limits of an exported model. Each one that is given must be met."""

    formats: tuple[Name, ...] = Field(default=(), max_length=16, description="Empty: any.")
    max_bytes: Bytes | None = None
    memory_bytes: Bytes | None = None
    load_s: Seconds | None = None
    p99_ms: Seconds | None = None
    batch: int = Field(default=1, ge=1, le=1_000_000, description="Of `p99_ms`.")
    difference: Ratio | None = Field(
        default=None, description="Largest difference to the checkpoint's outputs."
    )


class DriftLimits(Model):
    """From which size on a difference of two profiles is a finding. Sampling noise comes on top."""

    shift: Ratio = Field(default=0.05, description="Of means, in standard deviations.")
    ks: Ratio = Field(default=0.025, description="Of the distributions of numbers.")
    psi: Ratio = Field(default=0.1, description="Of categories.")
    missing: Ratio = Field(default=0.01, description="Of the share of missing values.")


class DataRules(Model):
    """The watch on the data of the version that an alias points to."""

    max_age_days: Annotated[float, Field(gt=0, le=36_500)] | None = None
    datasets: tuple[DatasetName, ...] = Field(
        default=(), max_length=64, description="Empty: the one that the version was trained on."
    )
    drift: DriftLimits | None = Field(default_factory=DriftLimits)


def _baseline(value: Any) -> Any:
    whole = isinstance(value, int) and not isinstance(value, bool)
    number = value if whole else int(value) if isinstance(value, str) and value.isdigit() else 0
    if value != "current" and not 0 < number < MOST_VERSIONS:
        raise ValueError("must be current, or the number of a version")
    return value


class Gate(Model):
    """The gate of one model: of all its protected aliases."""

    version: Literal[1] = 1
    team: Identifier
    model: ModelName
    aliases: tuple[AliasName, ...] = Field(min_length=1, max_length=8)
    baseline: Annotated[Literal["current"] | Version, BeforeValidator(_baseline)] = Field(
        description="`current`: the version that the alias points to; else a fixed version."
    )
    first: Literal["refuse", "accept"] = Field(
        default="refuse",
        description="While the alias points to nothing, rules against a baseline are "
        "inconclusive (refuse) or hold (accept).",
    )
    checkpoint: Literal["promoted", "any"] = Field(
        default="promoted",
        description="`any`: also versions of MLflow that no validated checkpoint is behind.",
    )
    confidence: Confidence = 0.95
    suites: dict[SuiteName, SuiteRule] = Field(default_factory=dict, max_length=MAX_SUITES)
    supporting_failures: Few = Field(default=1, description="So many supporting suites may fail.")
    serving: ServingLimits | None = None
    approvals: int = Field(default=0, ge=0, le=10)
    approvers: tuple[User, ...] = Field(
        default=(), max_length=100, description="Names of users. Empty: any of the team."
    )
    seed: Few = Field(default=0, description="Of bootstraps.")
    resamples: int = Field(default=10_000, ge=1000, le=100_000)
    training_data: DataRules | None = None

    @field_validator("suites")
    @classmethod
    def _names_are_plain(cls, suites: dict[str, SuiteRule]) -> dict[str, SuiteRule]:
        for name in suites:
            if name.startswith("__"):
                raise ValueError(f"{name[:64]}: a name must not begin with __")
        return suites

    @model_validator(mode="after")
    def _check(self) -> Self:
        decides = any(
            one.importance is not Importance.INFORMATIONAL for one in self.suites.values()
        )
        if not decides and self.serving is None and not self.approvals:
            raise ValueError("decides nothing: give suites, serving or approvals")
        if len(set(self.aliases)) != len(self.aliases):
            raise ValueError("aliases: names an alias twice")
        if self.approvers and len(set(self.approvers)) < self.approvals:
            raise ValueError("approvals: asks for more than there are approvers")
        return self

    def confidence_of(self, rule: SuiteRule) -> float:
        """The confidence of a suite's rule."""
        return self.confidence if rule.confidence is None else rule.confidence

    @property
    def digest(self) -> str:
        """sha256 in hex of its content."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()


class GateFileError(Exception):
    """A text is not a gate file; the message names file, line and field."""


def read_gate(text: str, name: str = "gate.yaml") -> Gate:
    """The gate in a YAML text. Raises GateFileError.

    The line of a field that is missing is that of what it belongs to; 1 is the file itself.
    """
    try:
        document = read_document(text)
    except JobFileError as error:
        where = f":{error.line}" if error.line else ""
        raise GateFileError(f"{name}{where}: {error.message}") from None
    try:
        return Gate.model_validate(document.content)
    except ValidationError as error:
        lines = []
        for item in field_errors(error, model=Gate):
            place = f"{name}:{document.line(item.field) or 1}"
            field = "" if item.field == "(body)" else f"{item.field}: "
            lines.append(f"{place}: {field}{item.message}")
        raise GateFileError("\n".join(lines)) from None
