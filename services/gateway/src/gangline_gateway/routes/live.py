"""/v1/training-jobs/.../live: events, metrics and log lines of one job in one stream.

A browser may have six connections to a host, so a page has one stream. Each part has a cursor of
its own; an event's id holds those of all parts.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Annotated, Literal, get_args

from fastapi import Query
from starlette.responses import StreamingResponse

from gangline_gateway.app_context import App, Caller, JobId, answers, router
from gangline_gateway.log_pages import LogFilter
from gangline_gateway.problems import invalid
from gangline_gateway.routes.comparisons import MetricNames, Points
from gangline_gateway.routes.jobs import team_of_job
from gangline_gateway.routes.logs import (
    STREAM,
    Attempt,
    LastEventId,
    Rank,
    event_stream,
    log_stream,
)
from gangline_gateway.routes.runs import HISTORY_POINTS, metric_stream

live = router("Logs and events")

Part = Literal["events", "metrics", "logs"]
_PARTS: tuple[Part, ...] = get_args(Part)
_QUEUED = 100
_ID, _END, _DROPPED = "id: ", "event: end\n", "event: dropped\n"


@live.get(
    "/v1/training-jobs/{job_id}/live",
    operation_id="followJob",
    summary="Follow a job",
    response_class=StreamingResponse,
    responses={200: STREAM, **answers(404)},
)
async def follow_job(
    job_id: JobId,
    app: App,
    caller: Caller,
    *,
    part: Annotated[
        list[Part] | None, Query(max_length=3, description="Default: all parts.")
    ] = None,
    name: MetricNames = None,
    points: Points = HISTORY_POINTS,
    rank: Rank = None,
    attempt: Attempt = None,
    tail: Annotated[int, Query(ge=0, le=1000, description="Log lines to begin with.")] = 0,
    last_event_id: LastEventId = None,
) -> StreamingResponse:
    """Server-sent events, then `end` once the job has ended.

    `event`: each new event of the bus about it. `history`, `step` and `progress`: as in
    /training-runs/.../metrics. `log`: each line, after the last `tail` ones.
    """
    team = await asyncio.to_thread(team_of_job, app, caller, job_id)
    wanted = tuple(item for item in _PARTS if item in (part or _PARTS))
    at = _read(last_event_id, wanted)
    parts: dict[str, AsyncGenerator[str, None]] = {}
    if "events" in wanted:
        parts["events"] = event_stream(app, (job_id, team), at.get("events"), fresh=True)
    if "metrics" in wanted:
        names = tuple(name or ())
        parts["metrics"] = metric_stream(app, (job_id, team), names, points, at.get("metrics"))
    if "logs" in wanted:
        lines = LogFilter(job_id, team, rank, attempt)
        parts["logs"] = log_stream(app, lines, tail, at.get("logs"))
    return app.streams.response(together(parts, at), caller.name)


async def together(
    parts: Mapping[str, AsyncGenerator[str, None]], at: Mapping[str, str]
) -> AsyncGenerator[str, None]:
    """The events of all parts as they come; `end` when the last one has ended.

    Events of the part `events` are named `event`. Raises what a part raises.
    """
    places, end = dict(at), ""
    queue: asyncio.Queue[tuple[str, str | Exception | None]] = asyncio.Queue(_QUEUED)

    async def read(name: str, source: AsyncGenerator[str, None]) -> None:
        try:
            async with aclosing(source):
                async for text in source:
                    await queue.put((name, text))
            await queue.put((name, None))
        except Exception as error:  # noqa: BLE001 - the stream raises it
            await queue.put((name, error))

    tasks = [asyncio.create_task(read(*part)) for part in parts.items()]
    running = len(tasks)
    try:
        while running:
            name, item = await queue.get()
            if isinstance(item, Exception):
                raise item
            if item is None:
                running -= 1
                continue
            place, text = _split(item)
            places |= {name: place} if place else {}
            if text.startswith(_END):
                end = text
            else:
                yield _named(name, text) if not place else _with(places, _named(name, text))
        if end:
            yield _with(places, end)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _split(text: str) -> tuple[str, str]:
    """The id of an event, or "", and the rest of its text."""
    if not text.startswith(_ID):
        return "", text
    head, _, rest = text.partition("\n")
    return head.removeprefix(_ID), rest


def _with(places: Mapping[str, str], text: str) -> str:
    ids = ";".join(f"{name}={place}" for name, place in sorted(places.items()))
    return f"{_ID}{ids}\n{text}"


def _named(part: str, text: str) -> str:
    if part != "events" or not text.startswith("event: ") or text.startswith(_DROPPED):
        return text
    return f"event: event\n{text.partition(chr(10))[2]}"


def _read(last_event_id: str | None, parts: tuple[Part, ...]) -> dict[str, str]:
    """The cursor of each part. Raises a 422 problem."""
    found: dict[str, str] = {}
    for item in (last_event_id or "").split(";") if last_event_id else ():
        name, sign, place = item.partition("=")
        if name not in parts or not sign:
            raise invalid("Last-Event-ID", "must be the id of an event of this stream")
        found[name] = place
    return found
