"""Registered models in common terms: names, evidence, comparisons, verdicts, moves of aliases."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, StringConstraints

from gangline_schemas.base import Identifier, Model, Timestamp
from gangline_schemas.limits import (
    Bytes,
    Count,
    Few,
    Label,
    Message,
    Name,
    ObjectKey,
    Ratio,
    Score,
    Seconds,
    Step,
    User,
    WorldSize,
)

MAX_ITEMS = 200_000
"""Items of one evaluation of a suite."""
ItemId = Annotated[str, StringConstraints(min_length=1, max_length=200)]
ITEM_SCORE_MAX = 1e23
"""Bounds of differences of means are then within `SCORE_MAX`."""
ItemScore = Annotated[float, Field(ge=-ITEM_SCORE_MAX, le=ITEM_SCORE_MAX)]
MAX_SUITES = 64
VALIDATED_ITSELF = "validated itself"
"""In the refusal to register a checkpoint that has not: the step `register` waits for it."""
NAME_PATTERN = r"^[A-Za-z0-9_][A-Za-z0-9._-]{0,127}$"
ModelName = Annotated[str, StringConstraints(pattern=NAME_PATTERN)]
"""A registered model of MLflow whose name fits an address: letters, digits and . _ -."""


def free_alias(name: str) -> str:
    """The name, if MLflow does not keep it for itself. Raises ValueError."""
    if name == "latest" or re.fullmatch(r"v[0-9]+", name):
        raise ValueError("must not be `latest`, nor v with a number: MLflow keeps these")
    return name


AliasName = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{1,63}$"), AfterValidator(free_alias)
]
"""As MLflow allows it: not `latest`, and not `v` with a number."""
MOST_VERSIONS = 2**31
Version = Annotated[int, Field(ge=1, lt=MOST_VERSIONS)]
MaybeVersion = Annotated[int, Field(ge=0, lt=MOST_VERSIONS)]
"""0: no version."""
SuiteName = Annotated[str, StringConstraints(pattern=NAME_PATTERN)]
Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
"""sha256 in hex."""
Confidence = Annotated[float, Field(ge=0.5, le=0.9999)]


class CheckpointOf(Model):
    """The committed checkpoint that a version is made of."""

    job_id: Identifier
    attempt: Few = Field(ge=1)
    step: Step
    world_size: WorldSize | None = None
    commit_key: ObjectKey | None = Field(
        default=None, description="Of its commit record: jobs start from it at any later time."
    )

    @property
    def place(self) -> tuple[str, int, int]:
        """The job, attempt and step that name it."""
        return self.job_id, self.attempt, self.step


class AliasedVersion(Model):
    """The version that an alias pointed to at one time, and the checkpoint that it is."""

    model: ModelName
    alias: AliasName
    version: Version
    checkpoint: CheckpointOf


class Evaluation(Model):
    """The result of a version in a suite. The scores of its items are an object in the store."""

    digest: Digest = Field(description="sha256 of the object.")
    key: ObjectKey
    items: int = Field(ge=1, le=MAX_ITEMS)
    binary: bool = Field(description="Each score is 0 or 1.")
    mean: Score
    job_id: Identifier | None = Field(default=None, description="The job that measured it.")
    details: dict[Name, Label] = Field(default_factory=dict, max_length=32)
    """Such as batch size and dtype, for people."""


class Paired(Model):
    """Items that two versions both have, whose scores are 0 or 1."""

    items: Count
    wins: Count = Field(description="Items that the candidate alone has right.")
    losses: Count = Field(description="Items that the baseline alone has right.")


class MeanDifference(Model):
    """Differences of scores by item: candidate less baseline."""

    items: Count
    difference: Score
    low: Score = Field(description="Lower bound at `confidence`, one-sided, by bootstrap.")
    high: Score = Field(description="Upper bound likewise.")
    confidence: Confidence
    seed: Few
    resamples: Few


class SuiteComparison(Model):
    """A candidate and a baseline in one suite: `paired` or `means`, else a `problem`."""

    suite: SuiteName
    candidate: Digest
    baseline: Digest
    unpaired: Count = Field(default=0, description="Items that only one of both has.")
    paired: Paired | None = None
    means: MeanDifference | None = None
    problem: Message = Field(default="", description="Why they cannot be compared.")


class Latency(Model):
    """Measured times of one batch size, in milliseconds."""

    batch: int = Field(ge=1, le=1_000_000)
    p50_ms: Seconds
    p99_ms: Seconds


class ServingReport(Model):
    """The needs of an exported model that serves."""

    format: Name
    loads: bool = True
    error: Message = Field(default="", description="Why it does not load.")
    size_bytes: Bytes = 0
    load_s: Seconds = 0.0
    memory_bytes: Bytes = 0
    difference: Ratio | None = Field(
        default=None, description="Largest difference of its outputs to the checkpoint's."
    )
    latencies: tuple[Latency, ...] = Field(default=(), max_length=64)


class Verdict(StrEnum):
    """The word of a gate on a candidate."""

    PASS = "pass"  # noqa: S105 - a verdict
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"
    VOID = "void"
    """The baseline changed while the candidate was compared."""


class Finding(Model):
    """One condition of a gate, and whether it holds."""

    subject: str = Field(max_length=200, description="Like `suite gsm8k` or `serving p99_ms`.")
    verdict: Verdict
    decides: bool = Field(default=True, description="False: for information only.")
    text: Message


class Override(Model):
    """A person moves an alias whatever the gate says."""

    person: User = Field(min_length=1)
    reason: Message = Field(min_length=1)


MoveKind = Literal["gate", "rollback", "override"]


COLUMNS_SHOWN = 20
"""So many of the columns that moved are listed."""


class ColumnDrift(Model):
    """How far the values of one column moved. Each is a size of an effect, not a p-value."""

    column: Name
    kind: Literal["number", "category", "text"]
    shift: Score = Field(default=0.0, description="Difference of means in standard deviations.")
    ks: Ratio = Field(default=0.0, description="Largest difference of the distributions.")
    psi: Ratio = Field(default=0.0, description="Population stability index.")
    missing: Score = Field(default=0.0, description="Difference in the share of missing values.")
    reasons: tuple[Label, ...] = Field(default=(), max_length=8)


class ProfileRef(Model):
    """The profile of a snapshot of data. The profile itself is an object in the store."""

    digest: Digest
    key: ObjectKey
    rows: Count
    columns: Few
    made_at: Timestamp = Field(description="When the data were made.")
    serving: bool = Field(default=False, description="Sent by a system that serves.")
