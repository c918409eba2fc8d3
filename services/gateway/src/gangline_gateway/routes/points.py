"""/v1/runs/points: all points of runs, page by page, as Parquet or as lines of JSON."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated

from fastapi import Query, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gangline_gateway.app_context import ID_PATTERN, App, Caller, answers, router, visible_teams
from gangline_gateway.problems import not_found
from gangline_gateway.routes.comparisons import MetricNames
from gangline_gateway.run_points import MAX_POINTS, Format, Kind, PointQuery

points = router("Runs")

MAX_RUNS = 100
MEDIA_TYPES: dict[Format, str] = {
    "parquet": "application/vnd.apache.parquet",
    "jsonl": "application/x-ndjson",
}
_BYTES = {"schema": {"type": "string", "format": "binary"}}


class _Page(Response):
    """Calls `sent` when the client has read it, or has gone."""

    sent: Callable[[], None]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.sent()


@points.get(
    "/v1/runs/points",
    operation_id="getPoints",
    summary="All points of runs, for export",
    response_class=Response,
    responses={
        200: {
            "content": dict.fromkeys(MEDIA_TYPES.values(), _BYTES),
            "headers": {
                "Link": {
                    "description": 'The next page as `rel="next"`; absent on the last page.',
                    "schema": {"type": "string"},
                }
            },
        },
        **answers(404),
    },
)
def get_points(
    request: Request,
    app: App,
    caller: Caller,
    *,
    run: Annotated[
        list[Annotated[str, Query(pattern=ID_PATTERN)]], Query(min_length=1, max_length=MAX_RUNS)
    ],
    kind: Annotated[
        Kind, Query(description="Runs of jobs, or runs that MLflow clients made.")
    ] = "job",
    name: MetricNames = None,
    first: Annotated[
        int | None, Query(ge=-(2**53), le=2**53, description="The first step.")
    ] = None,
    limit: Annotated[
        int, Query(ge=1, le=MAX_POINTS, description="Points of a page, about.")
    ] = 100_000,
    form: Annotated[
        Format, Query(alias="format", description="In JSON, NaN and infinities are null.")
    ] = "jsonl",
    cursor: Annotated[str | None, Query(max_length=8000)] = None,
) -> Response:
    """Rows of `run_id`, `name`, `step`, `time_ms`, `value` and `attempt`, in this order of keys.

    At a step that ran twice the newest attempt of a job counts. MLflow's points are all there.
    """
    wanted = dict.fromkeys(run, "")
    teams = visible_teams(caller)
    if kind == "job":
        rows = app.history.query(lambda q: q.history.some_runs([*wanted], teams))
        wanted = {row.run.run_id: row.run.team for row in rows}
        if len(wanted) != len(set(run)):
            raise not_found("run")
    asked = PointQuery(
        kind, wanted, tuple(name or ()), first, limit, format=form, cursor=cursor, teams=teams
    )
    app.pages_of.take(caller.name)
    try:
        page = app.history.query(lambda q: q.points.page(asked))
        headers = {"Cache-Control": "no-store"}
        if page.cursor is not None:
            url = request.url.include_query_params(cursor=page.cursor)
            headers["Link"] = f'<{url.path}?{url.query}>; rel="next"'
        answer = _Page(page.body, headers=headers, media_type=MEDIA_TYPES[form])
    except BaseException:
        app.pages_of.free(caller.name)
        raise
    answer.sent = partial(app.pages_of.free, caller.name)
    return answer
