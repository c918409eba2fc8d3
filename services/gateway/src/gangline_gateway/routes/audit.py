"""/v1/audit: who did what through the gateway."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from fastapi import Query

from gangline_gateway.app_context import ID_PATTERN, App, Caller, answers, router, visible_teams
from gangline_gateway.audit_trail import MAX_PAGE, AuditFilter
from gangline_gateway.routes.runs import moment
from gangline_schemas.access import ActionName
from gangline_schemas.api.access import AuditPage

audit_log = router("Access")


@audit_log.get(
    "/v1/audit",
    operation_id="listAudit",
    summary="List who did what",
    response_model=AuditPage,
    responses=answers(),
)
def list_audit(
    app: App,
    caller: Caller,
    *,
    user: Annotated[str, Query(max_length=256)] = "",
    team: Annotated[str, Query(pattern=ID_PATTERN)] = "",
    action: Annotated[
        ActionName, Query(description="Such as job.submit, or job for all that begin with it.")
    ] = "",
    outcome: Annotated[Literal["done", "refused", "failed", ""], Query()] = "",
    since: Annotated[datetime | None, Query(description="At this time or later.")] = None,
    until: Annotated[datetime | None, Query(description="Before this time.")] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 50,
    cursor: Annotated[str | None, Query(max_length=60)] = None,
) -> AuditPage:
    """Newest first: entries of the caller's teams and the caller's own; all for admins.

    With a personal access token of a member, only those of its teams.

    An entry is here about a second after the answer.
    """
    wanted = AuditFilter(
        teams=visible_teams(caller),
        own="" if caller.via == "access-token" else caller.name,
        user=user,
        team=team,
        action=action,
        outcome=outcome,
        since=moment("since", since),
        until=moment("until", until),
    )
    return app.history.query(lambda queries: queries.audit.page(wanted, limit=limit, cursor=cursor))
