"""/v1/health and /v1/dead-letters: the platform's processes, and records that they refused."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query

from gangline_gateway.app_context import Admin, App, AppContext, Caller, answers, router
from gangline_gateway.dead_letters import TOPICS
from gangline_gateway.problems import ProblemError, invalid
from gangline_schemas.api.health import DeadLetterCount, DeadLetterPage, PlatformHealth
from gangline_schemas.catalog import Topic
from gangline_service.tokens import Role

health = router("Health")


@health.get(
    "/v1/health",
    operation_id="getHealth",
    summary="How the platform is",
    response_model=PlatformHealth,
    responses=answers(),
)
def get_health(app: App, caller: Caller) -> PlatformHealth:
    """The processes of all services. Members see no checks, partitions and dead letters."""
    now, whole = app.clock(), caller.role is not Role.MEMBER
    services = app.tail.processes.rows(now, whole=whole)
    ready = {row.service for row in services if row.state == "ready"}
    return PlatformHealth(
        at=now,
        ok={row.service for row in services} == ready,
        services=services,
        dead_letters=_counts(app) if whole else [],
    )


def _counts(app: AppContext) -> list[DeadLetterCount] | None:
    try:
        return app.dead_letters.counts()
    except ProblemError:  # how the services are is known without Kafka
        return None


@health.get(
    "/v1/dead-letters",
    operation_id="listDeadLetters",
    summary="List refused records",
    response_model=DeadLetterPage,
    responses=answers(),
)
def list_dead_letters(
    app: App,
    caller: Admin,  # noqa: ARG001 - messages may be of any team
    topic: Annotated[
        list[str] | None, Query(max_length=20, description="Like `requests`; default: all.")
    ] = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    cursor: Annotated[str | None, Query(max_length=600)] = None,
) -> DeadLetterPage:
    """Needs an admin. The newest first, with the reason; secrets are blacked out."""
    wanted = [_topic(name) for name in topic or ()]
    return app.dead_letters.page(wanted, limit=limit, cursor=cursor)


def _topic(name: str) -> Topic:
    found = {topic.value.removeprefix("gangline."): topic for topic in TOPICS}
    if name not in found:
        raise invalid("topic", f"must be one of {', '.join(found)}")
    return found[name]
