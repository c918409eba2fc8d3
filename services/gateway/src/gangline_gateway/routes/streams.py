"""Shared parts of event streams: start positions, matching records and the end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing
from typing import Any

from gangline_bus.ports import Record, TopicPartition
from gangline_gateway import cursor, sse
from gangline_gateway.app_context import AppContext
from gangline_gateway.problems import ProblemError, invalid

BEAT_S = 0.5
LINGER_S = 1.5
"""A stream stays open this long after its job ended: other topics may come later."""

LONG_AGO_S = 10.0

Render = Callable[[Record], Iterable[tuple[str, Any]]]


def resumed(
    app: AppContext, last_event_id: str | None, places: list[TopicPartition]
) -> dict[TopicPartition, int] | None:
    """The positions of a Last-Event-ID; None if there is none. Raises a 422 problem."""
    if not last_event_id:
        return None
    try:
        found = cursor.read(last_event_id, places, app.tail.names)
    except cursor.CursorError as error:
        raise invalid("Last-Event-ID", str(error)) from None
    # A partition that is not in the cursor had no event yet.
    return {place: found.get(place, 0) for place in places}


def start_of_history(
    app: AppContext, known: dict[TopicPartition, int], places: list[TopicPartition]
) -> dict[TopicPartition, int]:
    """Where the live part begins: after the rows in ClickHouse, or at the rings' start."""
    starts = app.tail.starts(places)
    ends = app.tail.ends(places)
    return {place: min(known.get(place, starts[place]), ends[place]) for place in places}


def has_subject(record: Record, subject: bytes) -> bool:
    """Whether the event is about this job, by its header alone."""
    return any(name.lower() == "ce_subject" and value == subject for name, value in record.headers)


async def live_part(
    app: AppContext,
    positions: dict[TopicPartition, int],
    matches: Callable[[Record], bool],
    render: Render,
    job_id: str | None,
) -> AsyncGenerator[str, None]:
    """Events from these positions on, with cursors as ids, until the job has ended (None: never).

    Only the last event of a record has a cursor, so that no part of a record is lost.
    """
    loop = asyncio.get_running_loop()
    at, sent_s, quiet_since = dict(positions), loop.time(), None
    try:
        async with aclosing(app.followers.follow(positions, matches, BEAT_S)) as batches:
            async for batch in batches:
                for record in batch.records:
                    at[record.place] = record.offset + 1
                    rendered = list(render(record))
                    for index, (kind, data) in enumerate(rendered, 1):
                        last = index == len(rendered)
                        yield sse.event(kind, data, _id(app, at) if last else None)
                        sent_s = loop.time()
                now = loop.time()
                if now - sent_s >= app.followers.heartbeat_s:
                    sent_s = now
                    yield sse.COMMENT
                if job_id is None or batch.records or not batch.current:
                    quiet_since = None
                    continue
                ended = _ended(app, job_id)
                if ended is None:
                    continue
                state, linger_s = ended
                quiet_since = quiet_since or now
                if now - quiet_since >= linger_s:
                    yield sse.event("end", {"state": state}, _id(app, batch.positions))
                    return
    except ProblemError as error:
        yield sse.event("dropped", {"reason": error.detail})


def _id(app: AppContext, positions: dict[TopicPartition, int]) -> str:
    return cursor.write(positions, app.tail.names)


def _ended(app: AppContext, job_id: str) -> tuple[str, float] | None:
    """The final state ("unknown": only history has the job), and how long to linger."""
    job = app.tail.query(lambda live: live.jobs.get(job_id))
    if job is None:
        return "unknown", 0.0
    if not job.ended or job.ended_at is None:
        return None
    age_s = (app.clock() - job.ended_at).total_seconds()
    return job.state, LINGER_S if age_s < LONG_AGO_S else 0.0
