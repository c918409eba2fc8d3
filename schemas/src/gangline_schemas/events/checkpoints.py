"""gangline.checkpoints: what counts as a checkpoint. Written by checkpoint-service."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from gangline_schemas.base import Event, Identifier, Timestamp
from gangline_schemas.checkpoint_policy import Retention
from gangline_schemas.events.scheduling import CheckpointRef
from gangline_schemas.events.workers import REFERRED_STEPS
from gangline_schemas.job import JobSpec
from gangline_schemas.limits import (
    MAX_GANG_GPUS,
    Amount,
    Attempt,
    Bytes,
    Few,
    IntervalSeconds,
    Message,
    Metrics,
    ObjectKey,
    Offset,
    Partition,
    Rank,
    Seconds,
    Step,
    User,
    WorldSize,
)


class AttemptNoted(Event):
    """From here on only this attempt of the job can commit checkpoints."""

    type: ClassVar[str] = "attempt.noted"
    job_id: Identifier
    attempt: Attempt
    world_size: WorldSize
    prefix: ObjectKey = Field(
        description="Key prefix of all of the job's checkpoints in the store."
    )
    keep: Retention
    resume: CheckpointRef | None = Field(
        default=None, description="Kept until this attempt has a checkpoint of its own."
    )
    allocated_at: Timestamp | None = Field(
        default=None, description="When its gang was allocated; from here on it may fail."
    )
    validates: CheckpointRef | None = Field(
        default=None, description="All that it does is to try whether this one can be promoted."
    )
    spec: JobSpec | None = Field(
        default=None,
        description="Of a job that wants checkpoints promoted: the run to validate them.",
    )
    full_every: int = Field(
        default=1, ge=1, le=1000, description="Each so many of its saves one is written whole."
    )
    cpu_only: bool = Field(
        default=False, description="It has no GPUs, and its failures say nothing of their rate."
    )


class AttemptEnded(Event):
    """The attempt has ended. Checkpoints that it wrote completely may still be committed."""

    type: ClassVar[str] = "attempt.ended"
    job_id: Identifier
    attempt: Attempt
    final: bool = Field(default=False, description="The job ended: no further attempt comes.")
    ran_s: Amount = Field(default=0.0, description="How long it had its GPUs.")
    failed: bool = Field(
        default=False, description="A failure ended it, and the job resumes from a checkpoint."
    )
    succeeded: bool = Field(default=False, description="The job ended well.")


class RestoreNoted(Event):
    """The job's next attempt starts from this checkpoint of its own, as a user chose."""

    type: ClassVar[str] = "restore.noted"
    job_id: Identifier
    checkpoint: CheckpointRef = Field(description="Kept until the job's next attempt or its end.")


class ResumeNoted(Event):
    """The scheduler lets the job's next attempt start from this checkpoint of its own.

    It knows of no newer one, as far as this service knows.
    """

    type: ClassVar[str] = "resume.noted"
    job_id: Identifier
    checkpoint: CheckpointRef = Field(description="It and all newer ones are kept.")


class CheckpointBegun(Event):
    """A rank or node reported its part of a checkpoint first. The checkpoint is open from here on.

    The other reports follow in `gangline.workers`; this log does not repeat them.
    """

    type: ClassVar[str] = "checkpoint.begun"
    job_id: Identifier
    attempt: Attempt
    step: Step
    partition: Partition = Field(description="Of gangline.workers: the first report lies there.")
    offset: Offset = Field(description="The offset of that report.")


class CheckpointSaved(Event):
    """Every rank's part lies whole on its node's disk: committed there, not yet in the store.

    A restarted job waits for its way into the store, as long as its nodes live.
    """

    type: ClassVar[str] = "checkpoint.saved"
    job_id: Identifier
    attempt: Attempt
    step: Step
    world_size: WorldSize


class CheckpointWritten(Event):
    """Every rank reported that its part is in the store. The parts are verified from here on."""

    type: ClassVar[str] = "checkpoint.written"
    job_id: Identifier
    attempt: Attempt
    step: Step
    world_size: WorldSize


class CheckpointCommitted(Event):
    """Every rank's part is in the store and verified: the checkpoint counts from here on."""

    type: ClassVar[str] = "checkpoint.committed"
    job_id: Identifier
    checkpoint: CheckpointRef
    size_bytes: Bytes = Field(description="Of the objects that were written for it.")
    objects: Few = Field(ge=1)
    whole_bytes: Bytes | None = Field(
        default=None,
        description="Of the objects that a whole one would be, if some of its bytes lie elsewhere.",
    )
    refers: tuple[Step, ...] = Field(
        default=(),
        max_length=REFERRED_STEPS,
        description="Earlier steps of its attempt in whose objects chunks of it lie.",
    )
    write_s: Seconds = Field(default=0.0, description="The slowest rank's write.")
    blocked_s: Seconds = Field(default=0.0, description="Training stood still for this long.")
    verify_s: Seconds = 0.0
    metrics: Metrics = Field(default_factory=dict)


class CheckpointAbandoned(Event):
    """An open checkpoint will never be committed; its objects may be deleted."""

    type: ClassVar[str] = "checkpoint.abandoned"
    job_id: Identifier
    attempt: Attempt
    step: Step
    reason: Message
    ranks: tuple[tuple[Rank, Rank], ...] = Field(
        default=(),
        max_length=MAX_GANG_GPUS,
        description="Ranks whose parts were reported: first and last of each run.",
    )


class CheckpointCorrupted(Event):
    """Bytes in the store differ from what the manifest says."""

    type: ClassVar[str] = "checkpoint.corrupted"
    job_id: Identifier
    attempt: Attempt
    step: Step
    key: ObjectKey
    reason: Message


class ScrubBegun(Event):
    """A committed checkpoint is read again, because it was not for a while."""

    type: ClassVar[str] = "checkpoint.scrub.begun"
    job_id: Identifier
    attempt: Attempt
    step: Step


class CheckpointScrubbed(Event):
    """Every byte of a committed checkpoint was read again and is as it was written."""

    type: ClassVar[str] = "checkpoint.scrubbed"
    job_id: Identifier
    attempt: Attempt
    step: Step
    size_bytes: Bytes
    read_s: Seconds = 0.0


class IntervalAdvised(Event):
    """How often this attempt had best save. Said again when it changes by a fifth."""

    type: ClassVar[str] = "checkpoint.interval.advised"
    job_id: Identifier
    attempt: Attempt
    interval_s: IntervalSeconds
    limited_by: Literal["optimum", "ceiling", "floor", "storage"]
    cost_s: Amount = Field(description="The cost of one save for training.")
    busy_s: Amount = Field(description="How long one save keeps the store busy.")
    mtbf_s: Amount = Field(gt=0, description="Expected time between failures of this gang.")
    failures: Amount = Field(description="Of this job so far.")
    lost_s: Amount = Field(description="Work that a failure is expected to cost.")
    reason: Message = Field(description="One sentence for people.")
    risk: Message = Field(default="", description="The risk of saving less often.")
    suspected_at: Timestamp | None = Field(
        default=None, description="When a node of this attempt reported a sign of a failure."
    )


class PromotionRequested(Event):
    """A run will validate this checkpoint; quota admits it as if it had been submitted."""

    type: ClassVar[str] = "checkpoint.promotion.requested"
    job_id: Identifier
    attempt: Attempt
    step: Step
    run: Identifier = Field(description="The job that loads it and compares its loss.")
    spec: JobSpec = Field(description="Of that job.")


class CheckpointPromoted(Event):
    """It loaded in fresh processes, is finite, and its evaluation loss is the recorded one.

    The newest promoted checkpoint of a job is never deleted.
    """

    type: ClassVar[str] = "checkpoint.promoted"
    job_id: Identifier
    attempt: Attempt
    step: Step
    run: Identifier = Field(description="The job that validated it.")
    world_size: WorldSize | None = None
    commit_key: ObjectKey | None = Field(default=None, description="Of its commit record.")


class PromotionRefused(Event):
    """It was tried and is not promoted. Attempts may start from it all the same."""

    type: ClassVar[str] = "checkpoint.promotion.refused"
    job_id: Identifier
    attempt: Attempt
    step: Step
    run: Identifier = Field(description="The job that tried it.")
    reason: Message


class CheckpointPinChanged(Event):
    """This checkpoint is kept whatever the job's retention says, or no longer.

    A user asked for it, or a version of a model was made of it.
    """

    type: ClassVar[str] = "checkpoint.pin.changed"
    job_id: Identifier
    attempt: Attempt
    step: Step
    pinned: bool
    user: User = "unknown"


class RegistrationNoted(Event):
    """The registry makes a version of this checkpoint, so it is retained; or has ended to."""

    type: ClassVar[str] = "checkpoint.registration.noted"
    registration: Few = Field(ge=1, description="Its number in the registry's log.")
    job_id: Identifier
    attempt: Attempt
    step: Step
    open: bool


class CheckpointDeleted(Event):
    """A committed checkpoint fell out of retention; its objects are being deleted."""

    type: ClassVar[str] = "checkpoint.deleted"
    job_id: Identifier
    attempt: Attempt
    step: Step
    reason: Message


class ObjectsDeleted(Event):
    """The objects of a deleted or abandoned checkpoint are gone from the store."""

    type: ClassVar[str] = "checkpoint.objects.deleted"
    job_id: Identifier
    attempt: Attempt
    step: Step


class EffectDeferred(Event):
    """The store was away: what was to be done with a checkpoint will be tried again."""

    type: ClassVar[str] = "checkpoint.effect.deferred"
    job_id: Identifier
    attempt: Attempt
    step: Step
    effect: Literal["verify", "delete", "scrub"]
    tries: Few = Field(ge=1, description="How many times it was tried so far.")
    reason: Message
