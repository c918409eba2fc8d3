"""An event with its CloudEvents 1.0 attributes."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime

from gangline_schemas.base import Event

_NAMESPACE = uuid.UUID("6f1c2b4e-6c1a-5d0e-9a54-9d2f4c1a7b3e")


@dataclass(frozen=True, slots=True)
class LogPosition:
    """Where a decision stands in its log: dense `seq` per shard, and the writer's epoch."""

    shard: int
    writer_epoch: int
    seq: int


@dataclass(frozen=True, slots=True)
class Envelope:
    """One event as it travels. `subject` is the job, node or team that it is about."""

    id: str
    source: str
    time: datetime
    subject: str
    data: Event
    traceparent: str | None = None
    position: LogPosition | None = None

    @property
    def type(self) -> str:
        """The published CloudEvents type."""
        return self.data.type


def derived_id(*parts: object) -> str:
    """An id that is the same each time it is derived from the same parts (uuid5)."""
    return str(uuid.uuid5(_NAMESPACE, "\x1f".join(str(part) for part in parts)))
