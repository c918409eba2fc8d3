"""What a rank and its agent say to each other over a Unix socket: one JSON object a line.

The rank connects to the path in GANGLINE_AGENT_SOCKET, which only its user can open; the agent
checks the peer's credentials. The rank sends `Report`, `Doing`, `HandlesStop`, `Troubled`,
`ShardReady`, `DataDamaged`, `LeaveOutSamples`; the agent sends `Control` whenever what it says
changes. Neither waits for the other; a torn last line is ignored. What is refused here ends the
connection: a rank can be any program, so all that the agent and the services make of a message
must be possible.
Only a rank that found its checkpoint damaged asks (`CopyDamaged`) and waits (`CopyReplaced`).
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, TypeAdapter, model_validator

from gangline_schemas.base import Model
from gangline_schemas.events.workers import (
    LEFT_OUT_RANGES,
    ObjectDigest,
    RankActivity,
    SampleRange,
    Trouble,
)

_LARGEST = 2**63 - 1
_Int64 = Annotated[int, Field(ge=-_LARGEST, le=_LARGEST)]
"""What a rank says is passed on, compared and stored: nobody needs to bear more."""


class Hello(Model):
    """First message of a rank; `token` is GANGLINE_RANK_TOKEN from its environment."""

    kind: Literal["hello"] = "hello"
    rank: int = Field(ge=0)
    token: str


class Report(Model):
    """Metrics of finished steps, by column, within the bounds of `worker.step`."""

    kind: Literal["report"] = "report"
    step: tuple[_Int64, ...] = Field(max_length=10_000)
    time_ms: tuple[_Int64, ...]
    metrics: dict[str, tuple[float | None, ...]] = Field(max_length=1000)

    @model_validator(mode="after")
    def _columns_are_equally_long(self) -> Self:
        columns = (self.time_ms, *self.metrics.values())
        if any(len(column) != len(self.step) for column in columns):
            raise ValueError("time_ms and each metric need an entry for each step")
        return self


class Doing(Model):
    """What the rank does from now on, after the steps that it reported before."""

    kind: Literal["doing"] = "doing"
    activity: RankActivity


class HandlesStop(Model):
    """The program asks `should_stop()`: when it is told to stop, it saves and exits by itself."""

    kind: Literal["handles_stop"] = "handles_stop"


class Troubled(Model):
    """Something is wrong with the rank's training, which goes on."""

    kind: Literal["troubled"] = "troubled"
    trouble: Trouble


class ShardReady(Model):
    """A rank's shard and manifest lie complete and synced in GANGLINE_CHECKPOINT_DIR.

    The digests' keys are paths relative to that directory:
    attempt-0001/step-0000000020/rank-00000.bin and .json.
    """

    kind: Literal["shard_ready"] = "shard_ready"
    step: int = Field(ge=0, le=_LARGEST)
    rank: int = Field(ge=0)
    world_size: int = Field(ge=1)
    manifest: ObjectDigest
    shard: ObjectDigest
    refers: tuple[int, ...] = Field(
        default=(), description="Earlier steps of the attempt in whose files chunks of it lie."
    )
    write_s: float = 0.0
    blocked_s: float = 0.0
    metrics: dict[str, float] = Field(default_factory=dict)


class Control(Model):
    """What the agent asks of the rank from now on."""

    kind: Literal["control"] = "control"
    stop: str | None = Field(default=None, description="Save and exit: preempted, cancelled, ...")
    checkpoint_request: int = Field(default=0, description="Save once each time this grows.")
    committed: int | None = Field(
        default=None,
        description="The attempt's newest committed step: saves may leave out what is in it.",
    )
    interval_s: float | None = Field(
        default=None, gt=0, description="Save this often from now on; none: as at the start."
    )
    behind: bool = Field(
        default=False, description="As many saves as may wait lie before the store: begin no other."
    )


class CopyDamaged(Model):
    """A file of the checkpoint to start from is not what was committed: is there another copy?"""

    kind: Literal["copy_damaged"] = "copy_damaged"
    file: str = Field(
        max_length=200,
        description="Its name in GANGLINE_RESUME_FROM, or after its step's folder beside that.",
    )
    reason: str = Field(max_length=1000)


class DataDamaged(Model):
    """A block of a data shard stays damaged, so it is left out."""

    kind: Literal["data_damaged"] = "data_damaged"
    snapshot: str = Field(max_length=128)
    shard: str = Field(max_length=512)
    block: int = Field(ge=0)
    reason: str = Field(max_length=1000)


class LeaveOutSamples(Model):
    """This rank ends, as all of its gang: the next attempt shall go without these samples."""

    kind: Literal["leave_out"] = "leave_out"
    left_out: tuple[SampleRange, ...] = Field(
        max_length=LEFT_OUT_RANGES, description="All that the job goes without from then on."
    )

    @model_validator(mode="after")
    def _places_are_numbers_of_64_bits(self) -> Self:
        if any(part.first + part.count > _LARGEST for part in self.left_out):
            raise ValueError(f"left_out must end at {_LARGEST} at most")
        return self


class CopyReplaced(Model):
    """The answer to `CopyDamaged`: whether a sound copy lies under that name now."""

    kind: Literal["copy_replaced"] = "copy_replaced"
    file: str
    sound: bool


FromRank = Annotated[
    Hello
    | Report
    | Doing
    | HandlesStop
    | Troubled
    | ShardReady
    | CopyDamaged
    | DataDamaged
    | LeaveOutSamples,
    Field(discriminator="kind"),
]
FROM_RANK: TypeAdapter[FromRank] = TypeAdapter(FromRank)

FromAgent = Annotated[Control | CopyReplaced, Field(discriminator="kind")]
FROM_AGENT: TypeAdapter[FromAgent] = TypeAdapter(FromAgent)
