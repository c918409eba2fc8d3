"""Answers the gateway's searches of runs. The gateway lets no user reach this route."""

from __future__ import annotations

from anyio import to_thread
from mlflow.exceptions import MlflowException
from pydantic import ValidationError
from starlette.types import ASGIApp, Receive, Scope, Send

from gangline_mlflow.asgi import answer, refuse, whole_body
from gangline_mlflow.store import GanglineStore
from gangline_schemas.run_search import RUNS_PATH, FoundRuns, RunSearch


class RunLane:
    """An ASGI application before the guard: a search is of several teams, or of all."""

    def __init__(self, app: ASGIApp, store: GanglineStore) -> None:
        self._app, self._store = app, store

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a search, or hand the request on."""
        if (scope["method"], scope["path"]) != ("POST", RUNS_PATH):
            await self._app(scope, receive, send)
            return
        try:
            asked = RunSearch.model_validate_json(await whole_body(receive))
            found = await to_thread.run_sync(self._store.list_runs, asked)
        except ValidationError as error:
            await refuse(send, 400, "INVALID_PARAMETER_VALUE", str(error))
        except MlflowException as error:
            await refuse(send, error.get_http_status_code(), error.error_code, error.message)
        else:
            await answer(send, 200, FoundRuns(runs=tuple(found)).model_dump_json().encode())
