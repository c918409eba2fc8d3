"""/v1/incidents: failures of gangs, their cost and recovery."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from fastapi import Path, Query

from gangline_gateway.app_context import (
    ID_PATTERN,
    App,
    Caller,
    JobId,
    answers,
    router,
    visible_teams,
)
from gangline_gateway.history_access import Queries
from gangline_gateway.incidents import MAX_PAGE, IncidentFilter
from gangline_gateway.problems import not_found
from gangline_gateway.routes.runs import moment
from gangline_schemas.api.incidents import IncidentDetail, IncidentPage
from gangline_schemas.events.faults import FailureClass

incidents = router("Runs")


@incidents.get(
    "/v1/incidents",
    operation_id="listIncidents",
    summary="List failures and their cost",
    response_model=IncidentPage,
    responses=answers(),
)
def list_incidents(
    app: App,
    caller: Caller,
    *,
    job: Annotated[str, Query(pattern=ID_PATTERN)] = "",
    node: Annotated[str, Query(pattern=ID_PATTERN)] = "",
    team: Annotated[list[str] | None, Query(max_length=50)] = None,
    failure_class: Annotated[list[FailureClass] | None, Query(max_length=20)] = None,
    since: Annotated[datetime | None, Query(description="Failed at this time or later.")] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 50,
    cursor: Annotated[str | None, Query(max_length=120)] = None,
    shares: Annotated[
        bool, Query(description="Whether the totals are also by class, node, job and shard.")
    ] = True,
) -> IncidentPage:
    """Failures of the teams that the token can see, newest first, with totals of all."""
    teams = visible_teams(caller)
    if team:
        teams = frozenset(team) if teams is None else teams & frozenset(team)
    wanted = IncidentFilter(
        teams=teams,
        job_id=job,
        node_id=node,
        classes=tuple(item.value for item in failure_class or ()),
        since=moment("since", since),
    )

    def read(queries: Queries) -> IncidentPage:
        found, after = queries.incidents.page(wanted, limit=limit, cursor=cursor)
        return IncidentPage(
            incidents=found,
            totals=queries.incidents.totals(wanted, shares=shares),
            notices=queries.incidents.notices(wanted) if cursor is None else [],
            cursor=after,
        )

    return app.history.query(read)


@incidents.get(
    "/v1/incidents/{job_id}/{attempt}",
    operation_id="getIncident",
    summary="One failure, with the stacks of its ranks",
    response_model=IncidentDetail,
    responses=answers(404),
)
def get_incident(
    app: App,
    caller: Caller,
    job_id: JobId,
    attempt: Annotated[int, Path(ge=1, lt=2**32, description="The attempt that failed.")],
) -> IncidentDetail:
    """Only gangs that hang have stacks: the agent reads them before it kills the ranks."""
    teams = visible_teams(caller)

    def read(queries: Queries) -> IncidentDetail | None:
        found = queries.incidents.one(job_id, attempt, teams)
        if found is None:
            return None
        return IncidentDetail(incident=found, stacks=queries.incidents.stacks(job_id, attempt))

    answer = app.history.query(read)
    if answer is None:
        raise not_found("incident")
    return answer
