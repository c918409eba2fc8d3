"""Removes for good what users have deleted: MLflow's own `gc`, run by the server itself.

Another process would have points and counts of its own. `python -m gangline_mlflow gc` asks for it.
MLflow's own looks at no registered models. Here, runs and logged models stay from which versions
come that protected aliases need.
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
    from collections.abc import Iterable, Iterator

    from starlette.types import ASGIApp, Receive, Scope, Send

    from gangline_mlflow.protected_registry import ProtectedRegistry

PATH = "/gangline/gc"
DAYS = 30.0
_DAY_MS = 86_400_000
_ABANDONED_S = 7 * 86_400.0
_WAIT_S = 3600


class Collector:
    """An ASGI application before MLflow's. The gateway lets no user reach its route."""

    def __init__(self, app: ASGIApp, store: Any, registry: ProtectedRegistry) -> None:
        self._app, self._store, self._registry = app, store, registry

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
            kept = await to_thread.run_sync(self._collect, team, older_than_ms)
        except MlflowException as error:
            await refuse(send, error.get_http_status_code(), error.error_code, error.message)
        else:
            await answer(send, 200, json.dumps({"workspace": team, "kept": kept}).encode())

    def _collect(self, workspace: str, older_than_ms: int) -> int:
        """How many deleted runs and models stay, since protected aliases need their versions."""
        from mlflow.cli import _gc_tracking_resources
        from mlflow.utils.workspace_context import ServerWorkspaceContext

        from gangline_mlflow.parts import current

        with ServerWorkspaceContext(workspace):
            needed = self._registry.needed_sources()
            store = self._store
            runs = needed.intersection(store._get_deleted_runs())  # noqa: SLF001
            models = needed.intersection(store._get_deleted_logged_models())  # noqa: SLF001
            old_runs = store._get_deleted_runs(older_than_ms)  # noqa: SLF001
            old_models = store._get_deleted_logged_models(older_than_ms)  # noqa: SLF001
            experiments = [*self._experiments(older_than_ms, runs, models)]
            _gc_tracking_resources(
                backend_store=store,
                run_ids=[one for one in old_runs if one not in runs],
                experiment_ids=experiments,
                logged_model_ids=[one for one in old_models if one not in models],
                older_than=f"{older_than_ms} ms",
                time_delta=older_than_ms,
                skip_experiments=not experiments,
                skip_logged_models=False,
                ignore_not_found=True,
            )
        current().artifacts.store.remove_partial(older_than_s=_ABANDONED_S)
        return len(runs) + len(models)

    def _experiments(
        self, older_than_ms: int, runs: Iterable[str], models: Iterable[str]
    ) -> Iterator[str]:
        """Deleted experiments that are so old, without those of these runs and models."""
        from mlflow.entities import ViewType
        from mlflow.utils.time import get_current_time_millis

        store, token = self._store, None
        kept = {store.get_run(run).info.experiment_id for run in runs}
        kept |= {store.get_logged_model(one, allow_deleted=True).experiment_id for one in models}
        before = f"last_update_time < {get_current_time_millis() - older_than_ms}"
        while True:
            page = store.search_experiments(
                view_type=ViewType.DELETED_ONLY, filter_string=before, page_token=token
            )
            yield from (one.experiment_id for one in page if one.experiment_id not in kept)
            token = page.token
            if not token:
                return


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
            with urlopen(request, timeout=_WAIT_S) as answered:  # noqa: S310
                kept = json.loads(answered.read())["kept"]
                why = f"; {kept} stay, from which protected aliases have versions" if kept else ""
                sys.stderr.write(f"team {team}: done{why}\n")
        except HTTPError as error:
            sys.stderr.write(f"team {team}: {error.read().decode(errors='replace')[:500]}\n")
            return 1
        except OSError as error:
            sys.stderr.write(f"team {team}: {given.url} does not answer: {error}\n")
            return 1
    return 0
