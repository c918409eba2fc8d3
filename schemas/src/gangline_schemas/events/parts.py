"""gangline.parts: which release each process runs. gangline.vitals: how each process is."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from gangline_schemas.base import Event, Model, Timestamp
from gangline_schemas.limits import Count, Few, Message, Name, Release, Seconds

MOST_CHECKS, MOST_PLACES, MOST_SHARDS = 64, 1024, 256
"""In one report of a process."""


class PartAnnounced(Event):
    """A process runs this release. It says so at its start and each hour."""

    type: ClassVar[str] = "part.announced"
    part: Name
    instance: Name
    release: Release | None = Field(default=None, description="None: it stops.")


def vitals_key(part: str, instance: str) -> str:
    """The key of a process's records in gangline.vitals."""
    return f"{part}/{instance}"


class VitalCheck(Model):
    """Something that the process needs to be ready."""

    name: Name
    ok: bool
    detail: Message = ""


class UnreadRecords(Model):
    """The records of a partition that the process has still to read."""

    topic: Name
    partition: Few
    records: Count


class SnapshotWritten(Model):
    """The last snapshot of a shard that the process wrote: the state before event `seq`."""

    shard: Few
    seq: Count
    written_at: Timestamp


class PartVitals(Event):
    """How a process is. It says so every ten seconds, and when it stops."""

    type: ClassVar[str] = "part.vitals"
    part: Name
    instance: Name
    release: Release
    started_at: Timestamp
    ready: bool = Field(description="All its checks are ok.")
    stopping: bool = False
    beat_age_s: Seconds = Field(description="Since its main loop last turned.")
    stalled: bool = Field(default=False, description="It should have turned since.")
    checks: Annotated[tuple[VitalCheck, ...], Field(max_length=MOST_CHECKS)] = ()
    unread: Annotated[tuple[UnreadRecords, ...], Field(max_length=MOST_PLACES)] = ()
    snapshots: Annotated[tuple[SnapshotWritten, ...], Field(max_length=MOST_SHARDS)] = ()
