"""The messages between a rank and its agent over a Unix socket: one JSON object a line.

The rank connects to the path in GANGLINE_AGENT_SOCKET, which only its user can open; the agent
checks the peer's credentials. The rank sends `Report`, `Doing`, `HandlesStop`, `Troubled`,
`ShardReady`, `TrialPoint`, `DataDamaged`, `LeaveOutSamples`. The agent sends `Control` whenever its
content changes. Neither waits for the other; a torn last line is ignored. A message that is refused
here ends the connection. A rank can be any program, so no accepted message may break the agent or a
service. Only a rank that found its checkpoint damaged sends `CopyDamaged` and waits for
`CopyReplaced`.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, StringConstraints, TypeAdapter, model_validator

from gangline_schemas.base import Model
from gangline_schemas.events.heartbeats import RankActivity, Trouble
from gangline_schemas.events.steps import STEPS_PER_MESSAGE, Columns
from gangline_schemas.events.trials import TRIAL_METRICS
from gangline_schemas.events.workers import (
    LEFT_OUT_RANGES,
    REFERRED_STEPS,
    ObjectDigest,
    SampleRange,
)
from gangline_schemas.limits import (
    INT64_MAX,
    Count,
    IntervalSeconds,
    Message,
    MetricName,
    Metrics,
    MetricValue,
    Name,
    Rank,
    Seconds,
    ShortText,
    Step,
    UnixMs,
    WorldSize,
)

_FileName = Annotated[Name, StringConstraints(max_length=200)]


class Hello(Model):
    """First message of a rank; `token` is GANGLINE_RANK_TOKEN from its environment."""

    kind: Literal["hello"] = "hello"
    rank: Rank
    token: str = Field(max_length=256)


class Report(Model):
    """Metrics of finished steps, by column, within the bounds of `worker.step`."""

    kind: Literal["report"] = "report"
    step: tuple[Step, ...] = Field(max_length=STEPS_PER_MESSAGE)
    time_ms: tuple[UnixMs, ...] = Field(max_length=STEPS_PER_MESSAGE)
    metrics: Columns

    @model_validator(mode="after")
    def _columns_are_equally_long(self) -> Self:
        columns = (self.time_ms, *self.metrics.values())
        if any(len(column) != len(self.step) for column in columns):
            raise ValueError("time_ms and each metric need an entry for each step")
        return self


class Doing(Model):
    """The activity of the rank from now on, after the steps that it reported before."""

    kind: Literal["doing"] = "doing"
    activity: RankActivity


class HandlesStop(Model):
    """The program calls `should_stop()`: when the answer is yes, it saves and exits by itself."""

    kind: Literal["handles_stop"] = "handles_stop"


class Troubled(Model):
    """Something is wrong with the rank's training, which continues."""

    kind: Literal["troubled"] = "troubled"
    trouble: Trouble


class ShardReady(Model):
    """A rank's shard and manifest lie complete and synced in GANGLINE_CHECKPOINT_DIR.

    The digests' keys are paths relative to that directory:
    attempt-0001/step-0000000020/rank-00000.bin and .json.
    """

    kind: Literal["shard_ready"] = "shard_ready"
    step: Step
    rank: Rank
    world_size: WorldSize
    manifest: ObjectDigest
    shard: ObjectDigest
    refers: tuple[Step, ...] = Field(
        default=(),
        max_length=REFERRED_STEPS,
        description="Earlier steps of the attempt in whose files chunks of it lie.",
    )
    write_s: Seconds = 0.0
    blocked_s: Seconds = 0.0
    metrics: Metrics = Field(default_factory=dict)


class TrialPoint(Model):
    """Values of a trial's metrics at a step, from rank 0; None: it is not a finite number."""

    kind: Literal["trial_point"] = "trial_point"
    step: Step
    values: dict[MetricName, MetricValue | None] = Field(min_length=1, max_length=TRIAL_METRICS)


class Control(Model):
    """The agent's requests to the rank from now on."""

    kind: Literal["control"] = "control"
    stop: Name | None = Field(default=None, description="Save and exit: preempted, cancelled, ...")
    checkpoint_request: Count = Field(default=0, description="Save once each time this grows.")
    committed: Step | None = Field(
        default=None,
        description="The attempt's newest committed step: saves may leave out its bytes.",
    )
    interval_s: IntervalSeconds | None = Field(
        default=None, description="Save this often from now on; none: as at the start."
    )
    behind: bool = Field(
        default=False, description="As many saves as may wait lie before the store: begin no other."
    )


class CopyDamaged(Model):
    """A file of the checkpoint to start from is not what was committed: is there another copy?"""

    kind: Literal["copy_damaged"] = "copy_damaged"
    file: _FileName = Field(
        description="Its name in GANGLINE_RESUME_FROM, or after its step's folder beside that.",
    )
    reason: Message


class DataDamaged(Model):
    """A block of a data shard stays damaged, so it is left out."""

    kind: Literal["data_damaged"] = "data_damaged"
    snapshot: Annotated[Name, StringConstraints(max_length=128)]
    shard: ShortText
    block: Count
    reason: Message


class LeaveOutSamples(Model):
    """This rank ends, as all of its gang: the next attempt must leave out these samples."""

    kind: Literal["leave_out"] = "leave_out"
    left_out: tuple[SampleRange, ...] = Field(
        max_length=LEFT_OUT_RANGES, description="All that the job leaves out from then on."
    )

    @model_validator(mode="after")
    def _places_are_numbers_of_64_bits(self) -> Self:
        if any(part.first + part.count > INT64_MAX for part in self.left_out):
            raise ValueError(f"left_out must end at {INT64_MAX} at most")
        return self


class CopyReplaced(Model):
    """The answer to `CopyDamaged`: whether a sound copy lies under that name now."""

    kind: Literal["copy_replaced"] = "copy_replaced"
    file: _FileName
    sound: bool


FromRank = Annotated[
    Hello
    | Report
    | Doing
    | HandlesStop
    | Troubled
    | ShardReady
    | TrialPoint
    | CopyDamaged
    | DataDamaged
    | LeaveOutSamples,
    Field(discriminator="kind"),
]
FROM_RANK: TypeAdapter[FromRank] = TypeAdapter(FromRank)

FromAgent = Annotated[Control | CopyReplaced, Field(discriminator="kind")]
FROM_AGENT: TypeAdapter[FromAgent] = TypeAdapter(FromAgent)
