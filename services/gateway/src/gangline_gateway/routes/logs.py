"""Logs and events of one job: pages from history, or a stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any

from fastapi import Header, Query
from starlette.responses import StreamingResponse

from gangline_bus.ports import Record, TopicPartition
from gangline_gateway import sse
from gangline_gateway.app_context import App, AppContext, Caller, JobId, answers, router
from gangline_gateway.events import CursorText, answer_of, event_of, page_cursor, read_page_cursor
from gangline_gateway.history_access import Queries
from gangline_gateway.log_pages import LogFilter
from gangline_gateway.problems import ProblemError
from gangline_gateway.routes.jobs import team_of_job
from gangline_gateway.routes.streams import has_subject, live_part, resumed, start_of_history
from gangline_schemas.api.logs import BusEvent, EventPage, LogLine, LogPage
from gangline_schemas.catalog import Topic
from gangline_schemas.events.logs import WorkerLog

logs = router("Logs and events")

STREAM = {"content": {sse.MEDIA_TYPE: {"schema": {"type": "string"}}}}
LastEventId = Annotated[
    str | None,
    Header(alias="Last-Event-ID", max_length=4096, description="Resume after this event."),
]
Rank = Annotated[int | None, Query(ge=0, le=1_000_000)]
Attempt = Annotated[int | None, Query(ge=1, le=1_000_000)]
Contains = Annotated[
    str, Query(max_length=200, description="Part of the line's text, in any case.")
]
Errors = Annotated[bool, Query(description="Only lines that look like errors.")]
Follow = Annotated[bool, Query(description="Stream server-sent events.")]
_TOPICS = (
    Topic.REQUESTS, Topic.QUOTA, Topic.SCHEDULING, Topic.FAULTS, Topic.CHECKPOINTS, Topic.WORKERS,
)  # fmt: skip
_PAGE = 1000


@logs.get(
    "/v1/training-jobs/{job_id}/logs",
    operation_id="getLogs",
    summary="Get a job's logs",
    response_model=LogPage,
    responses={200: STREAM, **answers(404)},
)
async def get_logs(
    job_id: JobId,
    app: App,
    caller: Caller,
    *,
    rank: Rank = None,
    attempt: Attempt = None,
    contains: Contains = "",
    errors: Errors = False,
    tail: Annotated[int | None, Query(ge=0, le=1000, description="Only the last lines.")] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 200,
    cursor: CursorText = None,
    before: Annotated[
        str | None,
        Query(max_length=100, description="With tail: the `start` of a page; lines before it."),
    ] = None,
    follow: Follow = False,
    last_event_id: LastEventId = None,
) -> LogPage | StreamingResponse:
    """Lines of all ranks in order of time. A stream sends `log` for each line, then `end`."""
    team = await asyncio.to_thread(team_of_job, app, caller, job_id)
    wanted = LogFilter(job_id, team, rank, attempt, contains, errors)
    if follow:
        return app.streams.response(log_stream(app, wanted, tail, last_event_id), caller.name)
    if tail == 0:
        return LogPage(lines=[], cursor=None)
    size, last = (tail, True) if tail is not None and cursor is None else (limit, False)
    place = before if last else cursor
    return await asyncio.to_thread(
        app.history.query,
        lambda queries: queries.history.logs(wanted, limit=size, cursor=place, tail=last),
    )


@logs.get(
    "/v1/training-jobs/{job_id}/logs.txt",
    operation_id="downloadLogs",
    summary="Download a job's log",
    response_class=StreamingResponse,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}, **answers(404)},
)
async def download_logs(
    job_id: JobId,
    app: App,
    caller: Caller,
    *,
    rank: Rank = None,
    attempt: Attempt = None,
    contains: Contains = "",
    errors: Errors = False,
) -> StreamingResponse:
    """All lines of history as text: attempt/rank, time, the line as it was written."""
    team = await asyncio.to_thread(team_of_job, app, caller, job_id)
    wanted = LogFilter(job_id, team, rank, attempt, contains, errors)
    headers = {
        "Content-Disposition": f'attachment; filename="{job_id}.log"',
        "Cache-Control": "no-store",
    }
    parts = _whole_log(app, wanted, await asyncio.to_thread(_text_page, app, wanted, None))
    return StreamingResponse(parts, media_type="text/plain; charset=utf-8", headers=headers)


async def _whole_log(
    app: AppContext, wanted: LogFilter, page: LogPage
) -> AsyncGenerator[str, None]:
    """Page by page: a reader that is slow holds one page in memory."""
    while page.lines:
        yield "".join(
            f"{line.attempt}/{line.rank} {line.time:%Y-%m-%dT%H:%M:%S.%fZ} {line.text}\n"
            for line in page.lines
        )
        page = await asyncio.to_thread(_text_page, app, wanted, page.cursor)


def _text_page(app: AppContext, wanted: LogFilter, cursor: str | None) -> LogPage:
    return app.history.query(
        lambda queries: queries.history.logs(wanted, limit=_PAGE, cursor=cursor)
    )


def log_stream(
    app: AppContext, wanted: LogFilter, tail: int | None, last_event_id: str | None
) -> AsyncGenerator[str, None]:
    """The last `tail` lines, unless resumed, and new ones. Raises a 422 problem at once."""
    at = resumed(app, last_event_id, app.tail.places(Topic.LOGS))
    return _log_parts(app, wanted, tail, at)


async def _log_parts(
    app: AppContext,
    wanted: LogFilter,
    tail: int | None,
    at: dict[TopicPartition, int] | None,
) -> AsyncGenerator[str, None]:
    """The last lines from history, unless resumed; then new lines."""
    sent: dict[tuple[int, int], int] = {}
    if at is None:
        known, rows = await asyncio.to_thread(_old_lines, app, wanted, tail)
        at = start_of_history(app, known, app.tail.places(Topic.LOGS))
        for row in rows:
            sent[row.attempt, row.rank] = max(row.line, sent.get((row.attempt, row.rank), -1))
            yield sse.event("log", row.model_dump(mode="json"))

    def render(record: Record) -> Iterable[tuple[str, Any]]:
        event = event_of(record)
        if not isinstance(event, WorkerLog) or not wanted.takes(event):
            return
        before = sent.get((event.attempt, event.rank), -1)
        for line, text in enumerate(event.lines, event.first_line):
            if line > before and wanted.takes_line(text.text):
                sent[event.attempt, event.rank] = line
                answer = LogLine(
                    attempt=event.attempt, rank=event.rank, line=line, node_id=event.node_id,
                    time=datetime.fromtimestamp(text.time_ms / 1000, tz=UTC), stream=text.stream,
                    text=text.text,
                )  # fmt: skip
                yield "log", answer.model_dump(mode="json")

    key = wanted.job_id.encode()
    async with aclosing(
        live_part(app, at, lambda record: record.key == key, render, wanted.job_id)
    ) as parts:
        async for part in parts:
            yield part


def _old_lines(
    app: AppContext, wanted: LogFilter, tail: int | None
) -> tuple[dict[TopicPartition, int], list[LogLine]]:
    """The last `tail` lines (None: 200) from history, and the offsets after them.

    Nothing while ClickHouse is away.
    """
    if tail == 0:
        return app.tail.ends(app.tail.places(Topic.LOGS)), []
    topic = app.tail.names.name(Topic.LOGS)
    try:
        known = app.history.query(lambda queries: queries.records.positions("logs", topic))
        page = app.history.query(
            lambda queries: queries.history.logs(wanted, limit=tail or 200, tail=True)
        )
    except ProblemError:
        return {}, []
    return known, page.lines


@logs.get(
    "/v1/training-jobs/{job_id}/events",
    operation_id="getJobEvents",
    summary="Get a job's events",
    response_model=EventPage,
    responses={200: STREAM, **answers(404)},
)
async def get_events(
    job_id: JobId,
    app: App,
    caller: Caller,
    kind: Annotated[
        list[str] | None,
        Query(alias="type", max_length=50, description="Only of these types, such as job.queued."),
    ] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 200,
    cursor: CursorText = None,
    follow: Follow = False,  # noqa: FBT002
    last_event_id: LastEventId = None,
) -> EventPage | StreamingResponse:
    """In order of time. A stream names each event by its type; the last is `end`."""
    team = await asyncio.to_thread(team_of_job, app, caller, job_id)
    if follow:
        return app.streams.response(event_stream(app, (job_id, team), last_event_id), caller.name)
    after = read_page_cursor(cursor)
    found = await asyncio.to_thread(
        app.history.query,
        lambda queries: queries.records.events(
            job_id, team, after=after, limit=limit, types=kind or ()
        ),
    )
    last = page_cursor(found[-1]) if found else cursor
    return EventPage(events=found, cursor=last)


def event_stream(
    app: AppContext, job: tuple[str, str], last_event_id: str | None, *, fresh: bool = False
) -> AsyncGenerator[str, None]:
    """All events of a job and team, unless resumed, and new ones; `fresh`: new ones alone.

    Raises a 422 problem at once.
    """
    places = [place for topic in _TOPICS for place in app.tail.places(topic)]
    at = resumed(app, last_event_id, places)
    if at is None and fresh:
        at = app.tail.ends(places)
    return _event_parts(app, job, places, at)


async def _event_parts(
    app: AppContext,
    job: tuple[str, str],
    places: list[TopicPartition],
    at: dict[TopicPartition, int] | None,
) -> AsyncGenerator[str, None]:
    job_id, team = job
    if at is None:
        known, old = await asyncio.to_thread(_old_events, app, job)
        at = start_of_history(app, known, places)
        prefix = app.tail.names.prefix
        for event in old:
            place = TopicPartition(f"{prefix}{event.topic}", event.partition)
            if event.offset < at.get(place, 0):
                yield sse.event(event.type, event.model_dump(mode="json"))
    subject = job_id.encode()

    def render(record: Record) -> Iterable[tuple[str, Any]]:
        answer = answer_of(record, app.tail.names, {"", team})
        if answer is not None:
            yield answer.type, answer.model_dump(mode="json")

    def matches(record: Record) -> bool:
        return has_subject(record, subject)

    async with aclosing(live_part(app, at, matches, render, job_id)) as parts:
        async for part in parts:
            yield part


def _old_events(
    app: AppContext, job: tuple[str, str]
) -> tuple[dict[TopicPartition, int], list[BusEvent]]:
    """All events from history, and the offsets after them; nothing while ClickHouse is away."""
    found: list[BusEvent] = []
    try:
        known = app.history.query(lambda queries: queries.records.event_positions())
        after: tuple[int, str, int, int] | None = None
        while True:
            page = app.history.query(partial(_page, job, after))
            found += page
            if len(page) < _PAGE:
                return known, found
            after = read_page_cursor(page_cursor(page[-1]))
    except ProblemError:
        return {}, []


def _page(
    job: tuple[str, str], after: tuple[int, str, int, int] | None, queries: Queries
) -> list[BusEvent]:
    return queries.records.events(*job, after=after, limit=_PAGE)
