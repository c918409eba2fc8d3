"""Questions to the scheduler and its answers: why a job waits, and how a job would be scheduled.

Answers are values of one moment; a question changes nothing. Durations are seconds.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, JsonValue

from gangline_schemas.api.base import OPEN_WORD, Answer
from gangline_schemas.api.jobs import State
from gangline_schemas.base import Identifier, Model, NodeIds, Timestamp
from gangline_schemas.limits import (
    GPUS_PER_NODE,
    MAX_NODES,
    Amount,
    Count,
    GpuIndex,
    Gpus,
    Label,
    Message,
    Priority,
    Score,
)


class _Value(Model):
    # Built at the first use, like the answers.
    model_config = ConfigDict(defer_build=True)


class OrderParts(_Value):
    """A job's place in the fair-share order: the lowest score comes first."""

    priority: Priority
    share_penalty: Score = Field(description="For its team's GPUs above its guarantee.")
    waiting_bonus: Score = Field(description="For how long it waits.")
    score: Score = Field(description="priority + share_penalty - waiting_bonus")


class AheadJob(_Value):
    """A job that comes first. `job_id` and `team` are null for jobs of other teams."""

    job_id: Identifier | None = None
    team: Identifier | None = None
    gpus: Gpus


class QuotaNumbers(_Value):
    """The GPUs of the job's team, and how many it may have now."""

    allocated: Count
    ceiling: Count
    limit: Count
    borrow_limit: Count


class GpuNumbers(_Value):
    """GPUs wanted (`fewest`: enough for an elastic job), free now, and of all usable nodes."""

    wanted: Count
    fewest: Count
    free: Count
    total: Count


class FreedFor(_Value):
    """GPUs that are being freed for the job, and until when they are reserved for it."""

    reason: Label
    nodes: NodeIds
    victims: Count
    until: Timestamp


class WaitMiss(_Value):
    """How far the first estimates of past jobs' starts were off: |estimated - real|."""

    jobs: Count
    median_s: Amount
    p90_s: Amount


class RuntimeMiss(_Value):
    """How far run times were off what the team's past jobs had said: |real - said| / said."""

    jobs: Count
    median: Amount
    p90: Amount


class Outlook(_Value):
    """When a job will start.

    `eta_is`: an `estimate`, or `at_least` when too much comes first to look at. Without an `eta`,
    `eta_reason` says why there is none.
    """

    eta: Timestamp | None = None
    eta_is: Annotated[Literal["estimate", "at_least"], OPEN_WORD] = "estimate"
    eta_reason: Message = ""
    nodes: NodeIds = ()
    level: Label | None = None
    wait_error: WaitMiss | None = None
    runtime_error: RuntimeMiss | None = None


class JobExplained(_Value):
    """Why a pending job waits, and what it waits for."""

    job_id: Identifier
    code: Label
    message: Message
    since: Timestamp
    position: Count = Field(ge=1, description="Its place in the queue.")
    ahead: tuple[AheadJob, ...] = Field(
        default=(), max_length=1000, description="The first jobs ahead of it."
    )
    ahead_gpus: Count = Field(default=0, description="GPUs that all jobs ahead of it want.")
    order: OrderParts | None = Field(default=None, description="With the fair-share order alone.")
    quota: QuotaNumbers | None = None
    gpus: GpuNumbers
    freed: FreedFor | None = None
    outlook: Outlook


class StartsOn(_Value):
    """The GPUs that the gang would get on one node."""

    node_id: Identifier
    gpus: Gpus
    indexes: tuple[GpuIndex, ...] = Field(
        default=(), max_length=GPUS_PER_NODE, description="Empty while they are being freed."
    )


class Victim(_Value):
    """A gang that would be stopped. `job_id` and `team` are null for jobs of other teams."""

    job_id: Identifier | None = None
    team: Identifier | None = None
    gpus: Gpus
    deadline: Timestamp = Field(description="Until when it may save.")


class WhatIfAnswer(_Value):
    """The outcome of a job that was submitted now.

    `starts`: `now`; `after_preemption`, once the victims are gone; `later`, see `waiting`; `never`
    as things stand. Costs are GPU-seconds.
    """

    starts: Annotated[Literal["now", "after_preemption", "later", "never"], OPEN_WORD]
    gpus: Gpus
    start: Timestamp | None = None
    nodes: tuple[StartsOn, ...] = Field(default=(), max_length=MAX_NODES)
    level: Label | None = Field(
        default=None, description="The closest level that contains the gang."
    )
    preempts: tuple[Victim, ...] = Field(default=(), max_length=MAX_NODES)
    cost_gpu_seconds: Amount = 0.0
    value_gpu_seconds: Amount = 0.0
    waiting: JobExplained | None = None
    message: Message = ""
    quota: QuotaNumbers | None = Field(default=None, description="Its team's GPUs, without it.")


class NodeGpus(_Value):
    """GPUs on one node."""

    node_id: Identifier
    gpus: Gpus


class ExpectedStart(_Value):
    """When a pending job is expected to start and to end.

    `job_id` and `team` are null for jobs of other teams. Without a `start` it would not start when
    all that runs now has ended. `start_is` as `eta_is` of an outlook.
    """

    position: Count = Field(ge=1, description="Its place in its shard's queue.")
    job_id: Identifier | None = None
    team: Identifier | None = None
    gpus: Gpus
    start: Timestamp | None = None
    start_is: Annotated[Literal["estimate", "at_least"], OPEN_WORD] = "estimate"
    end: Timestamp | None = None
    nodes: NodeIds = ()
    level: Label | None = None


class Reserved(_Value):
    """GPUs that are reserved for a pending job. `job_id` and `team` are null for other teams.

    `kind`: a `reservation` of a job that waited long; a `guarantee` that its team is owed; `freed`,
    for which gangs stop now. `start` and `end`: when the job is expected to have the GPUs; of
    `freed` ones now, and until when they are reserved.
    """

    job_id: Identifier | None = None
    team: Identifier | None = None
    kind: Annotated[Literal["reservation", "guarantee", "freed"], OPEN_WORD]
    gpus: Gpus
    kept_now: Gpus = Field(
        default=0, description="Free GPUs that only jobs which end before may use."
    )
    start: Timestamp
    end: Timestamp
    nodes: tuple[NodeGpus, ...] = Field(default=(), max_length=MAX_NODES)
    reason: Label = ""
    victims: Count = Field(default=0, description="Gangs that stop for it.")


class ShardOutlook(_Value):
    """The outlook of one shard's queue; `starts` of its first jobs, in order."""

    shard: Count
    order: Label = Field(description="The order's name: fair, drf, short, fifo or sjf.")
    gpus_free: Count
    gpus_total: Count
    starts: tuple[ExpectedStart, ...] = Field(default=(), max_length=1000)
    reserved: tuple[Reserved, ...] = Field(default=(), max_length=MAX_NODES)
    wait_error: WaitMiss | None = None


class QueueOutlook(Answer):
    """When pending jobs are expected to start, and the GPUs that are reserved for them."""

    as_of: datetime
    shards: list[ShardOutlook]


class Explanation(Answer):
    """Why the job is where it is: one reason, its evidence, the next step."""

    job_id: str
    state: State
    code: str
    message: str
    since: datetime | None
    evidence: dict[str, JsonValue]
    eta: datetime | None = Field(default=None, description="When a job that waits will start.")
    eta_note: str = Field(default="", description="A note on the ETA, or why there is none.")
    waits_for: JobExplained | None = Field(
        default=None, description="The reason why a pending job waits; null when it does not wait."
    )


class PriceRange(_Value):
    """The price of an hour on the cheapest and on the dearest GPUs that the gang may get.

    Equal where its GPUs are known. In the currency of the gateway's `gpu_prices`.
    """

    least: Amount
    most: Amount


class WhatIf(WhatIfAnswer):
    """The outcome of this job if it were submitted now; nothing was changed."""

    notes: tuple[str, ...] = Field(default=(), description="Notes of its team's quota.")
    price_per_hour: PriceRange | None = Field(
        default=None, description="Of the whole gang; null where the price of a model is unknown."
    )
