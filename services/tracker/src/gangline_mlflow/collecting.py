"""Removes for good what users have deleted: MLflow's own `gc`, run by the server itself.

Another process would have points and counts of its own. `python -m gangline_mlflow gc` asks for it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from gangline_mlflow.asgi import answer, refuse
from gangline_schemas.mlflow_workspace import workspace_of

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

PATH = "/gangline/gc"
DAYS = 30.0
_DAY_MS = 86_400_000
_ABANDONED_S = 7 * 86_400.0
_WAIT_S = 3600


class Collector:
    """An ASGI application before MLflow's. The gateway lets no user reach its route."""

    def __init__(self, app: ASGIApp, store: Any) -> None:
        self._app, self._store = app, store

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Collect a team's deleted runs, or hand the request on."""
        if scope["type"] != "http" or (scope["method"], scope["path"]) != ("POST", PATH):
            await self._app(scope, receive, send)
            return
        from anyio import to_thread
        from mlflow.exceptions import MlflowException

        headers = dict(scope["headers"])
        team = headers[b"x-mlflow-workspace"].decode("latin1")
        older_than_ms = int(headers.get(b"x-older-than-ms", b"0"))
        try:
            await to_thread.run_sync(self._collect, team, older_than_ms)
        except MlflowException as error:
            await refuse(send, error.get_http_status_code(), error.error_code, error.message)
        else:
            await answer(send, 200, json.dumps({"workspace": team}).encode())

    def _collect(self, workspace: str, older_than_ms: int) -> None:
        from mlflow.cli import _gc_tracking_resources
        from mlflow.utils.workspace_context import ServerWorkspaceContext

        from gangline_mlflow.parts import current

        with ServerWorkspaceContext(workspace):
            _gc_tracking_resources(
                backend_store=self._store,
                run_ids=None,
                experiment_ids=None,
                logged_model_ids=None,
                older_than=f"{older_than_ms} ms",
                time_delta=older_than_ms,
                skip_experiments=False,
                skip_logged_models=False,
                ignore_not_found=True,
            )
        current().artifacts.store.remove_partial(older_than_s=_ABANDONED_S)


def main(arguments: list[str]) -> int:
    """`python -m gangline_mlflow gc TEAM...`; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m gangline_mlflow gc",
        description="Remove for good the runs, models and experiments that teams have deleted, "
        "with their artifacts. GANGLINE_SERVICE_TOKEN is the server's.",
    )
    parser.add_argument("teams", nargs="+", metavar="TEAM")
    parser.add_argument("--older-than-days", type=float, default=DAYS, metavar="DAYS")
    parser.add_argument("--url", default=os.environ.get("GANGLINE_MLFLOW_URL"))
    given = parser.parse_args(arguments)
    token = os.environ.get("GANGLINE_SERVICE_TOKEN", "")
    if not given.url or not token:
        parser.error("set GANGLINE_MLFLOW_URL (or --url) and GANGLINE_SERVICE_TOKEN")
    for team in given.teams:
        request = Request(  # noqa: S310 - the operator's own address
            f"{given.url.rstrip('/')}{PATH}",
            method="POST",
            headers={
                "Authorization": f"Bearer {token}",
                "X-MLFLOW-WORKSPACE": workspace_of(team),
                "X-Older-Than-Ms": str(round(given.older_than_days * _DAY_MS)),
            },
        )
        try:
            with urlopen(request, timeout=_WAIT_S):  # noqa: S310
                sys.stderr.write(f"team {team}: done\n")
        except HTTPError as error:
            sys.stderr.write(f"team {team}: {error.read().decode(errors='replace')[:500]}\n")
            return 1
        except OSError as error:
            sys.stderr.write(f"team {team}: {given.url} does not answer: {error}\n")
            return 1
    return 0
