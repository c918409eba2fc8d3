"""/v1/changes: what changed, as one event stream for a page that shows many things."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query
from starlette.responses import StreamingResponse

from gangline_gateway.app_context import App, Caller, answers, router, visible_teams
from gangline_gateway.changes import Kind
from gangline_gateway.problems import invalid
from gangline_gateway.routes.logs import STREAM, LastEventId

changes = router("Logs and events")

_ALL: tuple[Kind, ...] = ("job", "node", "queue", "alert")


@changes.get(
    "/v1/changes",
    operation_id="followChanges",
    summary="Follow what changes",
    response_class=StreamingResponse,
    responses={200: STREAM, **answers()},
)
async def follow_changes(
    app: App,
    caller: Caller,
    *,
    follow: Annotated[bool, Query(description="Must be true: there are only streams.")] = True,
    kind: Annotated[
        list[Kind] | None, Query(max_length=4, description="Default: all kinds.")
    ] = None,
    last_event_id: LastEventId = None,
) -> StreamingResponse:
    """Server-sent events, for the caller's teams.

    `job`: a job's row, as in the list of jobs, at most once a second for its progress and once for
    all else. `node`: as in /v1/gpus. `alert`: as in the list of alerts, raised or resolved.
    `queue`: the order may have changed. `snapshot`: changes before it are not sent; read the lists.
    """
    if not follow:
        raise invalid("follow", "must be true")
    kinds = frozenset(kind or _ALL)
    parts = app.changes.follow(visible_teams(caller), kinds, last_event_id)
    return app.streams.response(parts, caller.name)
