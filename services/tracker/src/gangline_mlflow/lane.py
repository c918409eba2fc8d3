"""The fast lane: answers requests about metrics that are surely good, and hands on all others.

So every refusal, every odd spelling and every message is MLflow's own. The lane answers:
log-metric and log-batch with metrics alone, to a run that is known to be active; a metric's
history; the sample of histories that charts are drawn from; searches of runs.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from anyio import to_thread
from mlflow.exceptions import MlflowException
from mlflow.utils.search_utils import SearchUtils
from mlflow.utils.validation import _validate_metric
from mlflow.utils.workspace_context import ServerWorkspaceContext
from pydantic import TypeAdapter, ValidationError
from starlette.types import ASGIApp, Receive, Scope, Send

from gangline_bus.ports import BusError
from gangline_mlflow import plain
from gangline_mlflow.asgi import answer, refuse, replayed, whole_body
from gangline_mlflow.guard import WORKSPACE
from gangline_mlflow.history import MOST_POINTS, Unreadable
from gangline_mlflow.plain import HistoryQuery, Logged, Odd, SampleQuery
from gangline_mlflow.points import NotSettledError
from gangline_mlflow.store import ACCEPT_S, GanglineStore
from gangline_schemas.events.metrics import MetricLogged
from gangline_schemas.limits import MetricName
from gangline_schemas.mlflow_workspace import team_of

_NAME: TypeAdapter[str] = TypeAdapter(MetricName)
_NAMES_KEPT = 100_000
_RUNS_KEPT = 100_000
# Writes that leave active runs active. After any other one, runs are looked up again.
_HARMLESS = re.compile(
    r"/(runs/(log-[a-z-]+|set-tag|delete-tag|update|create|search|outputs)"
    r"|registered-models/.*|model-versions/.*|logged-models.*|traces.*|graphql"
    r"|mlflow-artifacts/.*|upload-artifact"
    r"|experiments/(search|create|get|get-by-name|set-experiment-tag))$"
)

_Answer = Callable[[str, bytes, bytes], Awaitable[bytes]]


class FastLane:
    """An ASGI application before MLflow's; belongs to one event loop."""

    def __init__(self, app: ASGIApp, store: GanglineStore) -> None:
        self._app, self._store, self._points = app, store, store.points
        self._active: set[tuple[str, str]] = set()  # (workspace, run); a new set forgets all
        self._changing = 0  # requests in progress that may end the activity of runs
        self._good_names: set[str] = set()
        self._routes: dict[tuple[str, str], _Answer] = {}
        for prefix in ("/api/2.0/mlflow", "/ajax-api/2.0/mlflow"):
            self._routes["POST", f"{prefix}/runs/log-metric"] = self._log_metric
            self._routes["POST", f"{prefix}/runs/log-batch"] = self._log_batch
            self._routes["POST", f"{prefix}/runs/search"] = self._search
            self._routes["GET", f"{prefix}/metrics/get-history"] = self._history
            self._routes["GET", f"{prefix}/metrics/get-history-bulk-interval"] = self._sample

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or hand it on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        route = self._routes.get((scope["method"], scope["path"]))
        workspace = _workspace_if_plain(scope) if route is not None else None
        if route is None or workspace is None:
            await self._hand_on(scope, receive, send)
            return
        body = await whole_body(receive) if scope["method"] == "POST" else b""
        try:
            made = await route(workspace, body, scope["query_string"])
        except (Odd, MlflowException, BusError, NotSettledError, Unreadable, ValidationError):
            # Also what could not be stored now: MLflow's way tries once more, and says why.
            await self._hand_on(scope, replayed(body, receive), send)
        except TimeoutError:
            await refuse(send, 503, "TEMPORARILY_UNAVAILABLE", "the bus does not answer; try again")
        else:
            await answer(send, 200, made)

    async def _hand_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] in {"GET", "HEAD", "OPTIONS"} or _HARMLESS.search(scope["path"]):
            await self._app(scope, receive, send)
            return
        self._active = set()
        self._changing += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._changing -= 1
            self._active = set()

    # Writing

    async def _log_metric(self, workspace: str, body: bytes, _query: bytes) -> bytes:
        return await self._accept(workspace, plain.log_metric(body))

    async def _log_batch(self, workspace: str, body: bytes, _query: bytes) -> bytes:
        return await self._accept(workspace, plain.log_batch(body))

    async def _accept(self, workspace: str, logged: Logged) -> bytes:
        if not self._good_names.issuperset(logged.names):
            for name in set(logged.names) - self._good_names:
                self._check_name(name)
        if (workspace, logged.run_id) not in self._active:
            await self._look_up(workspace, logged.run_id)
        event = MetricLogged.model_construct(  # each part of it is checked already
            run_id=logged.run_id,
            team=team_of(workspace),
            name=logged.names,
            step=logged.steps,
            time_ms=logged.times_ms,
            value=logged.values,
        )
        accepted = self._points.send(event)
        await asyncio.wait_for(asyncio.wrap_future(accepted), ACCEPT_S)
        return b"{}"

    async def _look_up(self, workspace: str, run_id: str) -> None:
        """Raise MlflowException unless the run is active; remember it if nothing changed since.

        Raises ValidationError when no event can name the run or its team.
        """
        team = team_of(workspace)
        MetricLogged(run_id=run_id, team=team, name=("x",), step=(0,), time_ms=(0,), value=(0.0,))
        active = self._active
        # Not the threads of `to_thread`: readers that wait for ClickHouse may hold all of these.
        await asyncio.to_thread(_within, workspace, self._store.assert_active, run_id)
        if active is self._active and not self._changing:
            if len(active) >= _RUNS_KEPT:
                active.clear()
            active.add((workspace, run_id))

    def _check_name(self, name: str) -> None:
        _validate_metric(name, 0.0, 0, 0)
        _NAME.validate_python(name)
        if len(self._good_names) >= _NAMES_KEPT:
            self._good_names.clear()
        self._good_names.add(name)

    # Reading

    async def _search(self, workspace: str, body: bytes, _query: bytes) -> bytes:
        asked = plain.search_runs(body)
        found: bytes = await to_thread.run_sync(_within, workspace, self._store.search_json, asked)
        return found

    async def _history(self, workspace: str, _body: bytes, query: bytes) -> bytes:
        return await to_thread.run_sync(self._read_history, workspace, plain.history(query))

    def _read_history(self, workspace: str, asked: HistoryQuery) -> bytes:
        offset = SearchUtils.parse_start_offset_from_page_token(asked.page_token)
        histories = _within(workspace, self._store.readable, [asked.run_id])
        size = MOST_POINTS if asked.limit is None else min(asked.limit, MOST_POINTS)
        rows = histories.of_run_json(asked.run_id, asked.name, offset, size + 1)
        if len(rows) <= size:
            return _metrics(rows)
        token = SearchUtils.create_page_token(offset + size)
        return _metrics(rows[:size], b',"next_page_token":"' + token + b'"')

    async def _sample(self, workspace: str, _body: bytes, query: bytes) -> bytes:
        return await to_thread.run_sync(self._read_sample, workspace, plain.sample(query))

    def _read_sample(self, workspace: str, asked: SampleQuery) -> bytes:
        histories = _within(workspace, self._store.readable, asked.run_ids)
        rows = histories.sample_json(asked.run_ids, asked.name, asked.size, asked.steps)
        return _metrics(rows)


def _within(workspace: str, ask: Callable[[Any], Any], asked: object) -> Any:
    with ServerWorkspaceContext(workspace):
        return ask(asked)


def _workspace_if_plain(scope: Scope) -> str | None:
    """The workspace of a request in plain JSON; None: MLflow must look at its headers."""
    is_json, workspace = scope["method"] == "GET", b""
    for name, value in scope["headers"]:
        if name == b"content-type":
            is_json = is_json or value == b"application/json"
        elif name == WORKSPACE:
            workspace = value
        elif name in {b"origin", b"content-encoding"}:
            return None
    return workspace.decode("latin1") if is_json and workspace else None


def _metrics(rows: Sequence[bytes], more: bytes = b"") -> bytes:
    return b'{"metrics":[' + b",".join(rows) + b"]" + more + b"}" if rows else b"{}"
