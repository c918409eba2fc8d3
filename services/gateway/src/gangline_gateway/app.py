"""The FastAPI application: routes, problem documents, OpenAPI and request checks."""

from __future__ import annotations

from functools import cache
from importlib.metadata import version

from fastapi import FastAPI
from opentelemetry.metrics import Meter
from opentelemetry.trace import Tracer
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from gangline_gateway import openapi, problems
from gangline_gateway.app_context import AppContext
from gangline_gateway.audit import AuditLog
from gangline_gateway.console_proxy import is_console
from gangline_gateway.mlflow_jobs import JobTokens
from gangline_gateway.mlflow_routes import is_mlflow
from gangline_gateway.oidc.logins import Logins
from gangline_gateway.request_checks import Names, RequestChecks
from gangline_gateway.routes.alerts import alerts
from gangline_gateway.routes.aliases import aliases
from gangline_gateway.routes.approvals import approvals
from gangline_gateway.routes.audit import audit_log
from gangline_gateway.routes.bundles import bundles
from gangline_gateway.routes.changes import changes
from gangline_gateway.routes.checkpoints import checkpoints
from gangline_gateway.routes.cluster import cluster, who
from gangline_gateway.routes.comparisons import comparisons
from gangline_gateway.routes.health import health
from gangline_gateway.routes.history import history
from gangline_gateway.routes.incidents import incidents
from gangline_gateway.routes.jobs import jobs
from gangline_gateway.routes.joining import joining
from gangline_gateway.routes.live import live
from gangline_gateway.routes.logs import logs
from gangline_gateway.routes.models import models
from gangline_gateway.routes.pipeline_outputs import pipeline_outputs
from gangline_gateway.routes.pipelines import pipelines
from gangline_gateway.routes.points import points
from gangline_gateway.routes.profiles import profiles
from gangline_gateway.routes.ranks import ranks
from gangline_gateway.routes.reports import reports
from gangline_gateway.routes.runs import runs
from gangline_gateway.routes.search import searches
from gangline_gateway.routes.studies import studies
from gangline_gateway.routes.tokens import tokens as token_routes
from gangline_gateway.routes.topics import topics
from gangline_gateway.sessions import Sessions
from gangline_gateway.user_limits import RequestLimits, RequestRates
from gangline_service.tokens import TokenBook

OPENAPI_PATH = "/v1/openapi.json"
_TAGS = [
    {"name": "Jobs", "description": "Submit jobs, look at them, change them."},
    {"name": "Runs", "description": "Metrics, history and comparison."},
    {"name": "Studies", "description": "Searches for the best parameters, and their trials."},
    {"name": "Logs and events", "description": "Lines of the ranks, and the platform's decisions."},
    {"name": "Alerts", "description": "Alerts, silences, and notifications with deliveries."},
    {"name": "Models", "description": "Registered models, gates, protected aliases, drift."},
    {"name": "Health", "description": "The platform's processes, and records they refused."},
    {"name": "Search", "description": "Jobs, runs, nodes, teams and documentation by words."},
    {"name": "Cluster", "description": "Teams, nodes, the queue."},
    {"name": "Data", "description": "Approved uses of data snapshots."},
    {"name": "Pipelines", "description": "Pipelines, their runs, and why a step ran."},
    {"name": "Reports", "description": "Use of the GPUs over a period."},
    {"name": "History", "description": "The platform at a past time."},
    {"name": "Access", "description": "The audit log, and personal access tokens."},
    {"name": "About", "description": "The caller's token and the gateway's version."},
]


@cache
def routes() -> FastAPI:
    """The routes, which read their parts from each request: see `over`. Made once in a process."""
    app = FastAPI(
        title="Gangline",
        version=version("gangline-gateway"),
        description="Many teams train models on one GPU cluster.",
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        openapi_tags=_TAGS,
        redirect_slashes=False,
    )
    problems.install(app)
    for router in (
        jobs, checkpoints, ranks, bundles, logs, live, runs, comparisons, points, incidents, alerts,
        health, cluster, approvals, reports, searches, topics, changes, history, who, studies,
        pipelines, pipeline_outputs, models, aliases, profiles, joining, audit_log, token_routes,
    ):  # fmt: skip
        app.include_router(router)

    @app.get(OPENAPI_PATH, include_in_schema=False)
    def _document() -> JSONResponse:
        return JSONResponse(openapi.document(app))

    return app


def over(context: AppContext) -> ASGIApp:
    """The routes over these parts, without request checks."""
    app = routes()

    async def served(scope: Scope, receive: Receive, send: Send) -> None:
        scope.setdefault("state", {})["context"] = context
        await app(scope, receive, send)

    return served


def create_app(
    context: AppContext,
    names: Names,
    tokens: TokenBook,
    meter: Meter,
    tracer: Tracer,
    limits: RequestLimits | None = None,
    mlflow: ASGIApp | None = None,
    mlflow_limits: RequestLimits | None = None,
    *,
    job_tokens: JobTokens | None = None,
    console: ASGIApp | None = None,
    sessions: Sessions | None = None,
    audit: AuditLog | None = None,
    logins: Logins | None = None,
) -> RequestChecks:
    """The application as it is served: each request passes the checks first."""
    served = over(context)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        chosen: ASGIApp = served
        if mlflow is not None and is_mlflow(scope["path"]):
            chosen = mlflow
        elif console is not None and is_console(scope["path"]):
            chosen = console
        await chosen(scope, receive, send)

    return RequestChecks(
        app,
        names,
        tokens,
        meter,
        tracer,
        RequestRates(limits),
        RequestRates(mlflow_limits),
        RequestRates(limits),
        job_tokens,
        console is not None,
        sessions=sessions or Sessions(),
        node_tokens=context.node_tokens,
        audit=audit,
        access_tokens=context.tail.access_tokens,
        logins=logins,
    )
