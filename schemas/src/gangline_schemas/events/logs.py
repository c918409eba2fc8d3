"""gangline.logs: lines that ranks write."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from gangline_schemas.base import Event, Identifier, Model
from gangline_schemas.limits import Attempt, Count, Rank, UnixMs

LINE_CHARS = 16_384
"""Agents cut longer lines into several."""


class LogLine(Model):
    """One line that a rank wrote."""

    time_ms: UnixMs
    stream: Literal["stdout", "stderr"]
    text: str = Field(max_length=LINE_CHARS)


class WorkerLog(Event):
    """Consecutive lines of one rank; `first_line` counts from 0 in the attempt."""

    type: ClassVar[str] = "worker.log"
    job_id: Identifier
    team: Identifier
    attempt: Attempt
    rank: Rank
    node_id: Identifier
    first_line: Count
    lines: tuple[LogLine, ...] = Field(min_length=1, max_length=10_000)
