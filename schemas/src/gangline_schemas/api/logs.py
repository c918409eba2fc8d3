"""Lines that ranks wrote, and events of the bus."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any

from pydantic import Field

from gangline_schemas.api.base import Answer

ERROR_LINE = re.compile(
    r"(?i)(error|exception|traceback|fatal|critical|panic|segmentation fault|out of memory|killed)"
)
"""A line with one of these looks like an error; Python and ClickHouse (RE2) read it alike."""


class LogLine(Answer):
    """One line of one rank; `line` counts from 0 in the attempt."""

    attempt: int
    rank: int
    line: int
    node_id: str
    time: datetime
    stream: str
    text: str


class LogPage(Answer):
    """Lines in order of time."""

    lines: list[LogLine]
    cursor: str | None
    start: str | None = Field(
        default=None, description="Of the first line: give it as `before` for the lines before it."
    )


class BusEvent(Answer):
    """One event of the bus with its CloudEvents attributes."""

    topic: str
    partition: int
    offset: int
    id: str
    type: str
    source: str
    subject: str
    time: datetime
    data: dict[str, Any]


class EventPage(Answer):
    """Events in order; `cursor` continues after the last one."""

    events: list[BusEvent]
    cursor: str | None
