"""Checkpoints of a job, and the advised interval between them."""

from __future__ import annotations

from dataclasses import field
from datetime import datetime
from typing import Annotated

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from gangline_schemas.api.base import Answer, Body


@dataclass(
    frozen=True, slots=True, kw_only=True, config=ConfigDict(extra="forbid", defer_build=True)
)
class Checkpoint:
    """One checkpoint."""

    # Slotted, no model: the gateway keeps up to 1,000 of each job in memory.
    attempt: int
    step: int
    status: Annotated[
        str,
        Field(
            description="saved: whole on its gang's nodes, on its way to the store; committed, "
            "corrupted or deleted."
        ),
    ]
    committed_at: Annotated[
        datetime, Field(description="Since when it counts: where it is, if only saved.")
    ]
    tiers: Annotated[
        tuple[str, ...],
        Field(description="Where it lies: nodes (on the disks of its gang's nodes), store."),
    ] = field(default_factory=tuple)
    world_size: int
    size_bytes: Annotated[int, Field(description="Of the objects that were written for it.")]
    write_s: float
    blocked_s: float
    reason: Annotated[
        str,
        Field(description="Why it is corrupted or deleted, or only saved: the store is away."),
    ] = ""
    whole_bytes: Annotated[
        int | None,
        Field(description="The size of a whole one, if some of it lies in earlier ones."),
    ] = None
    refers: Annotated[
        tuple[int, ...],
        Field(description="Earlier steps of its attempt in which some of its bytes lie."),
    ] = ()
    verify_s: Annotated[float, Field(description="Reading it back before it counted.")] = 0.0
    scrubbed_at: Annotated[
        datetime | None,
        Field(description="When all its bytes were last read again and found right."),
    ] = None
    metrics: dict[str, float] = field(default_factory=dict)
    retained: Annotated[
        tuple[str, ...],
        Field(
            description="Why it is not deleted: latest, best, every, promoted, pinned, needed, "
            "in use. Empty: it may go."
        ),
    ] = field(default_factory=tuple)
    promotion: Annotated[
        str,
        Field(description="asked, promoted or refused; empty: no run was to validate it."),
    ] = ""
    promotion_run: Annotated[str, Field(description="The run that validates it.")] = ""
    promotion_reason: Annotated[str, Field(description="Why it was refused.")] = ""
    pinned: Annotated[bool, Field(description="A user wants it retained.")] = False

    @property
    def place(self) -> tuple[int, int]:
        """Its attempt and step, which name it among those of its job."""
        return self.attempt, self.step

    @property
    def promoted(self) -> bool:
        """Whether it was validated."""
        return self.promotion == "promoted"


class Advice(Answer):
    """The interval that follows from measured costs and failures; see concepts/checkpoints.md."""

    attempt: int
    interval_s: float
    limited_by: str = Field(description="optimum, ceiling, floor or storage.")
    cost_s: float = Field(description="The cost of one save for training.")
    busy_s: float = Field(description="How long one save keeps the store busy.")
    mtbf_s: float = Field(description="Expected time between failures of this gang.")
    failures: float
    lost_s: float = Field(description="Work that a failure is expected to cost.")
    reason: str
    risk: str = Field(description="The risk of saving less often; mostly empty.")
    advised_at: datetime


class CheckpointList(Answer):
    """A job's checkpoints, newest first."""

    checkpoints: list[Checkpoint]
    prefix: str | None = Field(
        default=None,
        description="The folder of the store that has them: attempt-NNNN/step-NNNNNNNNNN is below "
        "it. Null: the job's spec is not known.",
    )
    cursor: str | None = None
    interval_s: float | None = Field(default=None, description="How often it saves now.")
    advice: Advice | None = None


class PinBody(Body):
    """Whether a checkpoint is kept until it is unpinned."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"pinned": True}]})
    pinned: bool
