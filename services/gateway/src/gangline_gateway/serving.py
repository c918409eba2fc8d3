"""Runs the gateway: the tail and the HTTP server in threads, until the process stops."""

from __future__ import annotations

import gc
from functools import partial

from starlette.types import ASGIApp

from gangline_bus.ports import Writer
from gangline_bus.topics import TopicNames
from gangline_gateway.alert_rules import AlertRules
from gangline_gateway.app import create_app
from gangline_gateway.app_context import AppContext
from gangline_gateway.audit import AuditLog
from gangline_gateway.changes import Changes
from gangline_gateway.config import Settings
from gangline_gateway.console_proxy import ConsoleProxy
from gangline_gateway.dead_letters import DeadLetters
from gangline_gateway.follow import Followers
from gangline_gateway.followed import NoStateError
from gangline_gateway.history_access import HistoryAccess, connector
from gangline_gateway.mlflow_jobs import JobTokens
from gangline_gateway.mlflow_proxy import MlflowProxy
from gangline_gateway.mlflow_runs import MlflowRuns
from gangline_gateway.node_tokens import NodeTokens
from gangline_gateway.oidc.logins import Logins
from gangline_gateway.oidc.provider import Provider
from gangline_gateway.oidc.settings import OidcFileError, read_settings
from gangline_gateway.publish import Publisher
from gangline_gateway.quota_state import state_of
from gangline_gateway.request_checks import Names
from gangline_gateway.scheduler_questions import SchedulerQuestions
from gangline_gateway.sessions import Sessions
from gangline_gateway.sse import Streams
from gangline_gateway.state_history import StateHistory
from gangline_gateway.tail import Tail
from gangline_gateway.view_snapshot import ViewSnapshots
from gangline_schemas.catalog import Topic
from gangline_schemas.gpu_prices import GpuPrices
from gangline_schemas.mlflow_workspace import DEFAULT_TEAM
from gangline_service.bound_address import BoundAddress
from gangline_service.deciding import begin_on_bus, connect
from gangline_service.http_server import HttpServer
from gangline_service.lifecycle import Context
from gangline_service.snapshots import StoredSnapshots, Wrote, stored_snapshots
from gangline_service.tokens import TokenBook, TokenFileError
from gangline_storage.open import open_store


def main(context: Context[Settings]) -> int:
    """The life of the process; returns its exit code."""
    settings, health = context.settings, context.health
    tokens = _tokens(settings)
    logins = _logins(settings, tokens)
    health.expect("tail", "http")
    names = TopicNames(settings.topic_prefix)
    bus = connect(settings, "gateway")
    begin_on_bus("gateway", bus, names, context)
    snapshots = _snapshots(settings, context.vitals.wrote)
    views = ViewSnapshots(snapshots, every=settings.snapshot_every) if snapshots else None
    tail = Tail(bus, names, views, snapshots, context.vitals)
    health.set("tail", ok=False, detail="reading a snapshot")
    tail.start(health.beat)
    writer, mlflow = bus.writer(), _mlflow(settings)
    state_history = StateHistory(bus, names.places(bus, Topic.SCHEDULING), snapshots)
    app_context = _app_context(settings, names, tail, writer, state_history)
    server = _bind(settings)
    known = Names.of(server.port, settings.allowed_hosts, settings.scheme)
    if not _caught_up(context, tail):
        server.close()
        return 0
    # The folded state stays: a full collection over it would delay all answers by 0.5 s.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)  # else a third of a large answer's time
    store = app_context.store
    jobs = JobTokens(store, tail.job) if store is not None else None
    has_team = partial(_has_team, tail, tokens)
    app = create_app(
        app_context,
        known,
        tokens,
        context.meter,
        context.tracer,
        settings.request_limits(),
        MlflowProxy(*mlflow, jobs, has_team) if mlflow is not None else None,
        settings.mlflow_limits(),
        job_tokens=jobs,
        console=ConsoleProxy(settings.console_url) if settings.console_url else None,
        sessions=Sessions(file=settings.sessions_file),
        audit=AuditLog(writer, names),
        logins=logins,
    )
    _start(server, app, settings)
    address = _announce(settings, server.port)
    health.set("http", ok=True, detail=address.url)
    context.log.info("gateway.serving", url=address.url)
    _wait(context, server, tail)
    if settings.gateway_file is not None:
        settings.gateway_file.unlink(missing_ok=True)
    server.close()
    if logins is not None:
        logins.close()
    writer.close()
    tail.close()
    return 0


def _app_context(
    settings: Settings, names: TopicNames, tail: Tail, writer: Writer, state_history: StateHistory
) -> AppContext:
    """The parts that the routes use."""
    mlflow = _mlflow(settings)
    store = open_store(settings.store_url) if settings.store_url else None
    return AppContext(
        tail=tail,
        publisher=Publisher(writer, names),
        history=HistoryAccess(connector(settings, names)),
        followers=Followers(tail),
        streams=Streams(settings.streams_at_once, settings.streams_per_user),
        changes=Changes(tail),
        state_history=state_history,
        store=store,
        mlflow=MlflowRuns(*mlflow) if mlflow is not None else None,
        scheduler=SchedulerQuestions(tail),
        answer_wait_s=settings.answer_wait_s,
        data_approvals=settings.data_approvals,
        prices=GpuPrices.of(settings.gpu_prices),
        dead_letters=DeadLetters(lambda: connect(settings, "gateway.dead-letters"), names),
        alert_rules=AlertRules(settings.alerts_file),
        node_tokens=NodeTokens(store) if store is not None else None,
        nodes_file=settings.nodes_file,
    )


def _caught_up(context: Context[Settings], tail: Tail) -> bool:
    """Whether the tail has read all records that were there; False when the process must stop."""
    while not tail.ready.wait(0.2):
        context.health.beat()
        done, records = tail.progress()
        context.health.set("tail", ok=False, detail=f"{done:,} of {records:,} records are read")
        if context.stopping.is_set():
            return False
    context.health.set("tail", ok=True)
    return True


def _start(server: HttpServer, app: ASGIApp, settings: Settings) -> None:
    try:
        server.start(app, tls=settings.tls)
    except OSError as error:
        raise SystemExit(
            f"GANGLINE_TLS_CERT and GANGLINE_TLS_KEY cannot be used ({error.strerror or error}): "
            "name a certificate and its key, as PEM files that this process can read"
        ) from None


def _wait(context: Context[Settings], server: HttpServer, tail: Tail) -> None:
    """Until the process must stop. Raises RuntimeError when the server has ended."""
    silent = context.meter.create_gauge(
        "gangline.gateway.progress.silent", "s", "Time since the last progress of a run was read"
    )
    while not context.stopping.wait(0.5):
        if not server.alive:
            raise RuntimeError("the HTTP server has ended")
        context.health.beat()
        silent.set(tail.progress_silent_s())


def _mlflow(settings: Settings) -> tuple[str, str] | None:
    """The address of the MLflow server and the gateway's token for it, where there is one."""
    if settings.mlflow_url is None or settings.service_token is None:
        return None
    return settings.mlflow_url, settings.service_token.get_secret_value()


def _has_team(tail: Tail, tokens: TokenBook, team: str) -> bool:
    """Whether a token names the team, or quota knows it; True if quota's log cannot be read."""
    if team == DEFAULT_TEAM or tokens.has_team(team):
        return True
    try:
        return team in state_of(tail.view().quota).teams
    except NoStateError:
        return True


def _snapshots(settings: Settings, wrote: Wrote) -> StoredSnapshots | None:
    if settings.store_url is None:
        return None
    return stored_snapshots(settings.store_url, prefix=settings.topic_prefix, wrote=wrote)


def _tokens(settings: Settings) -> TokenBook:
    try:
        return TokenBook.load(settings.tokens_file)
    except TokenFileError as error:
        raise SystemExit(str(error)) from None


def _logins(settings: Settings, tokens: TokenBook) -> Logins | None:
    """Sign-ins at the provider, where one is configured."""
    if settings.oidc_file is None:
        return None
    try:
        known = read_settings(settings.oidc_file)
        return Logins(Provider(known, known.secret()), settings.sign_ins_file, tokens.knows)
    except OidcFileError as error:
        raise SystemExit(str(error)) from None


def _bind(settings: Settings) -> HttpServer:
    try:
        return HttpServer(
            settings.gateway_host, settings.gateway_port, limits=settings.connection_limits()
        )
    except OSError as error:
        raise SystemExit(
            f"cannot listen on {settings.gateway_host}:{settings.gateway_port} "
            f"({error.strerror}): set GANGLINE_GATEWAY_PORT to a free port (0 takes one)"
        ) from None


def _announce(settings: Settings, port: int) -> BoundAddress:
    address = BoundAddress.of(
        "gateway", settings.instance_id, settings.gateway_host, port, settings.scheme
    )
    if settings.gateway_file is not None:
        address.write(settings.gateway_file)
    return address
