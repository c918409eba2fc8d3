"""/v1/training-jobs/.../ranks: each rank of a running gang, with its last line."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query

from gangline_gateway.app_context import App, AppContext, Caller, JobId, answers, router
from gangline_gateway.gang_heartbeats import rank_rows
from gangline_gateway.problems import ProblemError
from gangline_gateway.routes.jobs import team_of_job
from gangline_schemas.api.jobs import RankList
from gangline_schemas.api.logs import LogLine

ranks = router("Jobs")


@ranks.get(
    "/v1/training-jobs/{job_id}/ranks",
    operation_id="listRanks",
    summary="List a gang's ranks",
    response_model=RankList,
    responses=answers(404),
)
def list_ranks(
    job_id: JobId,
    app: App,
    caller: Caller,
    *,
    lines: Annotated[bool, Query(description="Whether each rank's last line is read.")] = True,
    limit: Annotated[int, Query(ge=1, le=1000)] = 200,
    cursor: Annotated[int, Query(ge=0, le=1_000_000, description="Of an earlier page.")] = 0,
) -> RankList:
    """As the agents' last heartbeats report them; no ranks while the job has no GPUs."""
    found = app.details(job_id, caller)
    if found is None or found.gang is None:
        team_of_job(app, caller, job_id)
        return RankList(attempt=found.job.attempt if found else 0, ranks=[])
    rows = rank_rows(app.tail.view(), found, app.clock(), range(cursor, cursor + limit))
    size, attempt = found.gang.world_size, found.gang.attempt
    if lines and rows:
        last = _last_lines(app, (job_id, found.job.team), attempt, (cursor, cursor + limit))
        rows = [row.model_copy(update={"last_line": last.get(row.rank)}) for row in rows]
    more = cursor + limit
    return RankList(attempt=attempt, ranks=rows, cursor=more if more < size else None)


def _last_lines(
    app: AppContext, job: tuple[str, str], attempt: int, ranks: tuple[int, int]
) -> dict[int, LogLine]:
    """By rank; none while history is away."""
    try:
        return app.history.query(lambda queries: queries.history.last_lines(job, attempt, ranks))
    except ProblemError:
        return {}
