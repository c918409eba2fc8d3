"""/v1/history: the platform at a past time."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from fastapi import Query, Response

from gangline_gateway.app_context import App, Caller, answers, router, visible_teams
from gangline_gateway.large_answer import AcceptEncoding, large_answer
from gangline_gateway.past_answer import platform_at
from gangline_gateway.problems import invalid
from gangline_schemas.api.history import HistoryRange, PlatformAt

history = router("History")


@history.get(
    "/v1/history/range",
    operation_id="historyRange",
    summary="Times that can be shown",
    response_model=HistoryRange,
    responses=answers(),
)
def history_range(app: App, caller: Caller) -> HistoryRange:  # noqa: ARG001 - needs a token
    """From the scheduler's first decision that is retained until now."""
    return HistoryRange(earliest=app.past.earliest(), newest=app.clock())


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
    time: Annotated[datetime, Query(description="With a zone, such as 2026-11-21T14:30:00Z.")],
    accept_encoding: AcceptEncoding = None,
) -> Response:
    """Jobs, queue and GPUs as they were, folded from the scheduler's log.

    503 `not-read-yet`: the log is long; ask again, and it continues. One time is read at once.
    """
    if time.tzinfo is None:
        raise invalid("time", "must have a zone, such as 2026-11-21T14:30:00Z")
    if time > app.clock():
        raise invalid("time", "has not come yet")
    shards, events = app.past.shards(time)
    found = platform_at(shards, events, time, visible_teams(caller))
    return large_answer(found, accept_encoding)
