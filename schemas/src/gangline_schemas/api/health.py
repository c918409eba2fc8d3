"""Health of the platform: its processes, and the records that they could not read."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from gangline_schemas.api.base import OPEN_WORD, Answer

ProcessState = Literal["ready", "not_ready", "stalled", "silent", "absent"]


class HealthCheck(Answer):
    """Something that a process needs to be ready."""

    name: str
    ok: bool
    detail: str


class Unread(Answer):
    """The records of a partition that a process has still to read."""

    topic: str
    partition: int
    records: int


class Snapshot(Answer):
    """The last snapshot of a shard that the process wrote: the state before event `seq`."""

    shard: int
    seq: int
    written_at: datetime


class ServiceProcess(Answer):
    """One process of a service, as it last reported itself (every 10 seconds)."""

    service: str
    instance: str = Field(description="Empty: no process of this service reports.")
    version: str
    state: Annotated[ProcessState, OPEN_WORD] = Field(
        description="not_ready: a check fails; stalled: its main loop does not turn; silent: no "
        "report for 35 seconds; absent: no process of this service was seen for a day."
    )
    started_at: datetime | None
    reported_at: datetime | None
    beat_age_s: float | None = Field(description="Since its main loop turned, as it reported.")
    unread_records: int | None = Field(description="Of all its partitions.")
    checks: list[HealthCheck] = Field(description="For admins.")
    unread: list[Unread] = Field(description="By partition; for admins.")
    snapshots: list[Snapshot] = Field(description="Since its start; for admins.")


class DeadLetterCount(Answer):
    """The dead letters of one topic that are kept."""

    topic: str
    records: int


class PlatformHealth(Answer):
    """How the platform is."""

    at: datetime
    ok: bool = Field(description="Each service has a process that is ready.")
    services: list[ServiceProcess]
    dead_letters: list[DeadLetterCount] | None = Field(
        description="Topics that have some; for admins. Null: Kafka did not answer."
    )


class DeadLetter(Answer):
    """A record that a service refused: it was no valid event, or ended the service twice."""

    topic: str
    partition: int
    offset: int = Field(description="Where the record was, as partition and offset of its topic.")
    dead_letter: int = Field(description="Its offset in the topic of dead letters.")
    refused_at: datetime
    type: str = Field(description="As the record names it; empty: it names none.")
    source: str
    subject: str
    reason: str
    trace: str = Field(description="If its decision ended the service: where in the code.")
    size_bytes: int
    message: str = Field(description="Its first 16,384 characters, without secrets.")
    cut: bool = Field(description="The message is longer.")


class DeadLetterPage(Answer):
    """Dead letters, the newest first."""

    dead_letters: list[DeadLetter]
    cursor: str | None
