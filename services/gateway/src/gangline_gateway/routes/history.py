"""/v1/history: the platform at a past time."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from fastapi import Query

from gangline_gateway.app_context import App, AppContext, Caller, answers, router, visible_teams
from gangline_gateway.problems import ProblemError, invalid
from gangline_gateway.state_history_answer import platform_at
from gangline_gateway.steps_at import MOST, Attempt
from gangline_schemas.api.history import HistoryRange, PlatformAt

history = router("History")


def _with_steps(app: AppContext, found: PlatformAt, at: datetime) -> PlatformAt:
    """With the newest step of each job that has GPUs."""
    running = [job for job in found.jobs if job.gpus_allocated][:MOST]
    jobs = {job.job_id: Attempt(job.team, job.attempt) for job in running}
    try:
        steps = app.history.query(lambda queries: queries.curves.steps_at(jobs, at))
    except ProblemError:
        return found
    rows = [job.model_copy(update={"step": steps.get(job.job_id)}) for job in found.jobs]
    return found.model_copy(update={"jobs": rows})


@history.get(
    "/v1/history/range",
    operation_id="historyRange",
    summary="Times that can be shown",
    response_model=HistoryRange,
    responses=answers(),
)
def history_range(app: App, caller: Caller) -> HistoryRange:  # noqa: ARG001 - needs a token
    """From the scheduler's first decision that is retained until now."""
    return HistoryRange(earliest=app.state_history.earliest(), newest=app.clock())


@history.get(
    "/v1/history/at",
    operation_id="historyAt",
    summary="The platform at a past time",
    response_model=PlatformAt,
    responses=answers(),
)
def history_at(
    app: App,
    caller: Caller,
    *,
    time: Annotated[datetime, Query(description="With a zone, such as 2026-11-21T14:30:00Z.")],
    limit: Annotated[
        int | None, Query(ge=0, description="Jobs and places of the queue, at most; default: all.")
    ] = None,
    nodes: Annotated[bool, Query(description="Whether the map lists its nodes.")] = True,
    steps: Annotated[
        bool, Query(description="Whether the newest step of each listed job is read.")
    ] = False,
) -> PlatformAt:
    """Jobs, queue and GPUs as they were, folded from the scheduler's log.

    503 `not-read-yet`: the log is long; ask again, and it continues. One time is read at once.
    `steps` are of the first 300 jobs with GPUs, and null while history is away.
    """
    if time.tzinfo is None:
        raise invalid("time", "must have a zone, such as 2026-11-21T14:30:00Z")
    if time > app.clock():
        raise invalid("time", "has not come yet")
    shards, events = app.state_history.shards(time)
    teams = visible_teams(caller)
    found = platform_at(shards, events, time, teams, limit=limit, nodes=nodes)
    if steps:
        found = _with_steps(app, found, time)
    return found
