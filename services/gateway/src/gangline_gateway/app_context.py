"""The app context of the routes: parts of the gateway, the caller, and access to jobs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, NoReturn

from fastapi import APIRouter, Depends, Request
from fastapi import Path as PathField
from fastapi.routing import APIRoute

from gangline_bus.ports import BusUnavailable
from gangline_bus.topics import TopicNames
from gangline_gateway import audit
from gangline_gateway.alert_rules import AlertRules
from gangline_gateway.changes import Changes
from gangline_gateway.dead_letters import DeadLetters
from gangline_gateway.follow import Followers
from gangline_gateway.history_access import HistoryAccess
from gangline_gateway.large_answer import Endpoint, rendering
from gangline_gateway.large_bodies import Handler, checking
from gangline_gateway.live_model import JobDetails
from gangline_gateway.mlflow_runs import MlflowRuns
from gangline_gateway.node_tokens import NodeTokens
from gangline_gateway.problems import conflict, forbidden, not_found
from gangline_gateway.publish import Publisher
from gangline_gateway.reports.recent import RecentReports
from gangline_gateway.route_rules import rule_of
from gangline_gateway.scheduler_questions import SchedulerQuestions
from gangline_gateway.shared_answers import SharedAnswers
from gangline_gateway.sse import Streams
from gangline_gateway.state_history import StateHistory
from gangline_gateway.tail import Tail
from gangline_gateway.user_limits import UserSlots
from gangline_schemas.base import Event
from gangline_schemas.data_use import ApprovalRule
from gangline_schemas.gpu_prices import GpuPrices
from gangline_service.tokens import Principal, Role
from gangline_storage.port import ObjectStore

UPLOADS = 8
UPLOADS_PER_USER = 2
UPLOAD_WAIT_S = 10.0
PAGES_PER_USER = 4
"""Of points: each may take 200 MB until its client has read it."""
ID_PATTERN = r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"


def _no_bus() -> NoReturn:
    raise BusUnavailable("this gateway has no bus for dead letters")


class KeyLocks:
    """A lock per key, in one event loop."""

    def __init__(self) -> None:
        self._locks: dict[str, tuple[asyncio.Lock, int]] = {}

    @asynccontextmanager
    async def hold(self, key: str) -> AsyncIterator[None]:
        """Waits for the key's lock and holds it during the block."""
        lock, users = self._locks.get(key, (asyncio.Lock(), 0))
        self._locks[key] = (lock, users + 1)
        try:
            async with lock:
                yield
        finally:
            lock, users = self._locks[key]
            if users == 1:
                del self._locks[key]
            else:
                self._locks[key] = (lock, users - 1)


@dataclass(frozen=True)
class AppContext:
    """The parts of the gateway that routes use."""

    tail: Tail
    publisher: Publisher
    history: HistoryAccess
    followers: Followers
    streams: Streams
    changes: Changes
    state_history: StateHistory
    scheduler: SchedulerQuestions
    store: ObjectStore | None = None
    mlflow: MlflowRuns | None = None
    answer_wait_s: float = 2.0
    data_approvals: ApprovalRule = ApprovalRule.OFF
    prices: GpuPrices = field(default_factory=GpuPrices)
    dead_letters: DeadLetters = field(default_factory=lambda: DeadLetters(_no_bus, TopicNames()))
    alert_rules: AlertRules = field(default_factory=AlertRules)
    node_tokens: NodeTokens | None = None
    nodes_file: Path | None = None
    reports: RecentReports = field(default_factory=RecentReports)
    clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    submitting: KeyLocks = field(default_factory=KeyLocks)
    shared: SharedAnswers = field(default_factory=SharedAnswers)
    uploads: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(UPLOADS))
    pages_of: UserSlots = field(
        default_factory=lambda: UserSlots(PAGES_PER_USER, "pages of points")
    )
    uploads_of: UserSlots = field(default_factory=lambda: UserSlots(UPLOADS_PER_USER, "uploads"))

    def details(self, job_id: str, caller: Principal) -> JobDetails | None:
        """A job of the live model that the caller may see."""
        found = self.tail.view().details(job_id)
        return found if found is not None and caller.reads(found.job.team) else None

    async def request(self, key: str, event: Event) -> None:
        """Publishes a request and waits for the decision. Raises a 409 or 503 problem."""
        request_id = await self.publisher.publish(key, event)
        outcome = await self.tail.until(
            lambda live: live.outcomes.get(request_id), self.answer_wait_s
        )
        if outcome is not None and outcome.refused is not None:
            raise conflict("refused", outcome.refused)


def _check_scope(request: Request) -> None:
    """Raises a 403 problem if the scope of the token does not include that of the route."""
    caller = _caller(request)
    needed = rule_of(request.method, request.scope["route"].path).scope
    if not caller.scope.includes(needed):
        raise forbidden(f"this token has the scope {caller.scope}; this needs {needed}")


def _app(request: Request) -> AppContext:
    context: AppContext = request.state.context
    return context


def _caller(request: Request) -> Principal:
    principal: Principal = request.state.principal
    return principal


def _admin(caller: Annotated[Principal, Depends(_caller)]) -> Principal:
    if caller.role is not Role.ADMIN:
        raise forbidden("this needs a token with the role admin")
    return caller


App = Annotated[AppContext, Depends(_app)]
Caller = Annotated[Principal, Depends(_caller)]
Admin = Annotated[Principal, Depends(_admin)]
JobId = Annotated[str, PathField(pattern=ID_PATTERN, description="The job's id.")]
RunId = Annotated[
    str, PathField(pattern=ID_PATTERN, description="The run's id, equal to its job's.")
]


class GatewayRoute(APIRoute):
    """A route that answers with the models' field names; large bodies and answers take threads."""

    def __init__(self, path: str, endpoint: Endpoint, **settings: Any) -> None:
        endpoint = rendering(endpoint, settings.get("status_code"))
        super().__init__(path, endpoint, **{**settings, "response_model_by_alias": False})

    def get_route_handler(self) -> Handler:
        """FastAPI's handler of this route, which gets a large body already checked."""
        handle = super().get_route_handler()
        if self.body_field is None or self._embed_body_fields:
            return handle
        return checking(handle, self.body_field)


def router(tag: str) -> APIRouter:
    """A router with one tag, whose routes check the scope of the caller's token."""
    return APIRouter(tags=[tag], route_class=GatewayRoute, dependencies=[Depends(_check_scope)])


def visible_teams(caller: Principal) -> frozenset[str] | None:
    """The teams whose data the caller sees; None: all."""
    return None if caller.all_teams else caller.teams


def may_change(caller: Principal, team: str, field_name: str = "team") -> None:
    """Raises a 403 problem unless the caller may run and change this team's jobs."""
    audit.note().team = team
    if caller.role is Role.SERVICE:
        raise forbidden("tokens with the role service can only read; use a token of a user")
    if not caller.reads(team):
        raise forbidden("the token does not belong to this team", field_name)


def job_to_change(app: AppContext, caller: Principal, job_id: str) -> JobDetails:
    """A job that the caller may change. Raises a 404 or 403 problem."""
    found = app.details(job_id, caller)
    if found is None:
        raise not_found()
    may_change(caller, found.job.team)
    return found


def answers(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """OpenAPI descriptions of the problems of a route, and of those that all routes have."""
    texts = {
        400: "The request is malformed.",
        401: "The token is missing or unknown.",
        403: "The caller may not do this, or the request comes from a page of another origin.",
        404: "It does not exist, or it belongs to another team.",
        408: "The body did not arrive in time.",
        409: "The current state does not allow the request.",
        413: "The body is too large.",
        415: "The body's content type is not supported.",
        421: "The Host header is not a name of this gateway.",
        422: "A field is wrong; `errors` names it.",
        429: "The caller exceeds a limit; try again after Retry-After seconds.",
        431: "The headers are too large.",
        503: "A needed service is unavailable; try again after Retry-After seconds.",
    }
    every = {400, 401, 403, 408, 413, 421, 422, 429, 431, 503}
    return {status: {"description": texts[status]} for status in sorted(every | set(statuses))}
