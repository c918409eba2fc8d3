"""The first part of the server: only the gateway is answered, and each team has its workspace."""

from __future__ import annotations

import asyncio
import hmac

from mlflow.exceptions import MlflowException
from starlette.types import ASGIApp, Receive, Scope, Send

from gangline_mlflow.asgi import refuse
from gangline_mlflow.job_runs import JobRuns
from gangline_mlflow.latest import DatabaseAway
from gangline_mlflow.workspaces import make_workspace
from gangline_schemas.mlflow_workspace import JOB_HEADER

WORKSPACE = b"x-mlflow-workspace"
_JOB = JOB_HEADER.encode()
_OPEN = frozenset({"/health", "/version"})


class Guard:
    """Lets requests with the service's token through. A team's first request makes its workspace.

    A job's requests wait until its run is there. MLflow's default workspace reaches into the
    folders of all teams, so no request is let in there.
    """

    def __init__(self, app: ASGIApp, token: str, jobs: JobRuns) -> None:
        self._app, self._jobs = app, jobs
        self._wanted = f"Bearer {token}".encode()
        self._teams: set[bytes] = set()
        self._making = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check one request and hand it on."""
        if scope["type"] == "websocket":
            return
        if scope["type"] == "http" and scope["path"] not in _OPEN:
            refused = await self._refusal(dict(scope["headers"]))
            if refused is not None:
                await refuse(send, *refused)
                return
        await self._app(scope, receive, send)

    async def _refusal(self, headers: dict[bytes, bytes]) -> tuple[int, str, str] | None:
        """Status, code and message; None: the request may pass."""
        if not hmac.compare_digest(headers.get(b"authorization", b""), self._wanted):
            return 401, "UNAUTHENTICATED", "requests come through the gateway"
        team, job = headers.get(WORKSPACE, b""), headers.get(_JOB)
        if team in {b"", b"default"}:
            problem = "the gateway names the workspace of a team, and that is never the default one"
            return 400, "INVALID_PARAMETER_VALUE", problem
        try:
            if team not in self._teams:
                await self._make(team)
            if job is not None and not await self._jobs.has(job.decode("latin1")):
                return 503, "TEMPORARILY_UNAVAILABLE", "the job has no run yet"
        except MlflowException as error:
            return error.get_http_status_code(), error.error_code, str(error.message)
        except DatabaseAway as error:
            return 503, "TEMPORARILY_UNAVAILABLE", f"the database does not answer: {error}"
        return None

    async def _make(self, team: bytes) -> None:
        """Make a workspace. Raises MlflowException."""
        async with self._making:
            await asyncio.to_thread(make_workspace, team.decode("latin1"))
        self._teams.add(team)
