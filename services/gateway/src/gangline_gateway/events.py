"""Bus events as REST answers, and the cursors of their pages."""

from __future__ import annotations

import re
from collections.abc import Container
from datetime import datetime, timedelta
from typing import Annotated

from fastapi import Query

from gangline_bus.codec import UndecodableError, decode
from gangline_bus.ports import Record
from gangline_bus.topics import TopicNames
from gangline_gateway.problems import invalid
from gangline_schemas.api.logs import BusEvent
from gangline_schemas.base import Event
from gangline_schemas.envelope import team_of

CursorText = Annotated[
    str | None, Query(max_length=200, description="The cursor of an earlier page.")
]
_EPOCH = datetime.fromisoformat("1970-01-01T00:00:00+00:00")
_PAGE_CURSOR = re.compile(r"^(\d{1,15})\.(\d{1,6})\.(\d{1,18})\.([a-z.]{1,60})$", re.ASCII)


def answer_of(
    record: Record, names: TopicNames, teams: Container[str] | None = None
) -> BusEvent | None:
    """An event with its attributes; None if the record is not a valid event.

    `teams`: events that name another team than these give None ("": an event without a team).
    """
    try:
        envelope = decode(record)
    except UndecodableError:
        return None
    if teams is not None and team_of(envelope.data) not in teams:
        return None
    return BusEvent(
        topic=names.topic(record.topic).value,
        partition=record.partition,
        offset=record.offset,
        id=envelope.id,
        type=envelope.type,
        source=envelope.source,
        subject=envelope.subject,
        time=envelope.time,
        data=envelope.data.data(),
    )


def event_of(record: Record) -> Event | None:
    """The event of a record; None if it is not a valid one."""
    try:
        return decode(record).data
    except UndecodableError:
        return None


def page_cursor(event: BusEvent) -> str:
    """The cursor after this event."""
    ms = (event.time - _EPOCH) // timedelta(milliseconds=1)
    return f"{ms}.{event.partition}.{event.offset}.{event.topic}"


def read_page_cursor(text: str | None) -> tuple[int, str, int, int] | None:
    """(milliseconds, topic, partition, offset). Raises a 422 problem."""
    if text is None:
        return None
    matched = _PAGE_CURSOR.match(text)
    if matched is None:
        raise invalid("cursor", "must be the cursor of an earlier page")
    return int(matched[1]), matched[4], int(matched[2]), int(matched[3])
