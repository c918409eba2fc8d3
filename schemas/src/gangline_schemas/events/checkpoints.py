"""gangline.checkpoints: what counts as a checkpoint. Written by checkpoint-service."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from gangline_schemas.base import Event, Identifier
from gangline_schemas.events.scheduling import CheckpointRef
from gangline_schemas.events.workers import CheckpointShardWritten
from gangline_schemas.job import Retention


class AttemptNoted(Event):
    """From here on only this attempt of the job can commit checkpoints."""

    type: ClassVar[str] = "attempt.noted"
    job_id: Identifier
    attempt: int = Field(ge=1)
    world_size: int = Field(ge=1)
    prefix: str = Field(description="Key prefix of all of the job's checkpoints in the store.")
    keep: Retention
    resume: CheckpointRef | None = Field(
        default=None, description="Kept until this attempt has a checkpoint of its own."
    )


class AttemptEnded(Event):
    """The attempt runs no more. What it wrote completely may still be committed."""

    type: ClassVar[str] = "attempt.ended"
    job_id: Identifier
    attempt: int = Field(ge=1)
    final: bool = Field(default=False, description="The job ended: no further attempt comes.")


class RestoreNoted(Event):
    """The job's next attempt starts from this checkpoint of its own, as a user chose."""

    type: ClassVar[str] = "restore.noted"
    job_id: Identifier
    checkpoint: CheckpointRef = Field(description="Kept until the job's next attempt or its end.")


class ShardRecorded(Event):
    """One rank's part of an open checkpoint is known."""

    type: ClassVar[str] = "checkpoint.shard.recorded"
    shard: CheckpointShardWritten


class CheckpointCommitted(Event):
    """Every rank's part is in the store and verified: the checkpoint counts from here on."""

    type: ClassVar[str] = "checkpoint.committed"
    job_id: Identifier
    checkpoint: CheckpointRef
    size_bytes: int = Field(ge=0)
    objects: int = Field(ge=1)
    write_s: float = Field(default=0.0, ge=0, description="The slowest rank's write.")
    blocked_s: float = Field(default=0.0, ge=0, description="Training stood still for this long.")
    verify_s: float = Field(default=0.0, ge=0)
    metrics: dict[str, float] = Field(default_factory=dict)


class CheckpointAbandoned(Event):
    """An open checkpoint will never be committed; its objects may be deleted."""

    type: ClassVar[str] = "checkpoint.abandoned"
    job_id: Identifier
    attempt: int = Field(ge=1)
    step: int = Field(ge=0)
    reason: str


class CheckpointCorrupted(Event):
    """Bytes in the store differ from what the manifest says."""

    type: ClassVar[str] = "checkpoint.corrupted"
    job_id: Identifier
    attempt: int = Field(ge=1)
    step: int = Field(ge=0)
    key: str
    reason: str


class CheckpointDeleted(Event):
    """A committed checkpoint fell out of retention; its objects are being deleted."""

    type: ClassVar[str] = "checkpoint.deleted"
    job_id: Identifier
    attempt: int = Field(ge=1)
    step: int = Field(ge=0)
    reason: str


class ObjectsDeleted(Event):
    """The objects of a deleted or abandoned checkpoint are gone from the store."""

    type: ClassVar[str] = "checkpoint.objects.deleted"
    job_id: Identifier
    attempt: int = Field(ge=1)
    step: int = Field(ge=0)


class EffectDeferred(Event):
    """The store was away: the verification or deletion of a checkpoint will be tried again."""

    type: ClassVar[str] = "checkpoint.effect.deferred"
    job_id: Identifier
    attempt: int = Field(ge=1)
    step: int = Field(ge=0)
    effect: Literal["verify", "delete"]
    tries: int = Field(ge=1, description="How many times it was tried so far.")
    reason: str
