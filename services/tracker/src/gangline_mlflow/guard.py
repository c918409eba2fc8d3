"""Each team has its workspace, and a job's requests wait for its run."""

from __future__ import annotations

import asyncio

from mlflow.exceptions import MlflowException
from starlette.types import ASGIApp, Receive, Scope, Send

from gangline_mlflow.asgi import refuse
from gangline_mlflow.database import DatabaseAway
from gangline_mlflow.front import OPEN
from gangline_mlflow.job_runs import JobRuns
from gangline_mlflow.workspaces import make_workspace
from gangline_schemas.mlflow_workspace import JOB_HEADER

WORKSPACE = b"x-mlflow-workspace"
_JOB = JOB_HEADER.encode()


class Guard:
    """A team's first request makes its workspace. A job's request waits until its run is there.

    MLflow's default workspace reaches into the folders of all teams, so requests to it are refused.
    """

    def __init__(self, app: ASGIApp, jobs: JobRuns) -> None:
        self._app, self._jobs = app, jobs
        self._teams: set[bytes] = set()
        self._making = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check one request and hand it on."""
        if scope["path"] not in OPEN:
            refused = await self._refusal(dict(scope["headers"]))
            if refused is not None:
                await refuse(send, *refused)
                return
        await self._app(scope, receive, send)

    async def _refusal(self, headers: dict[bytes, bytes]) -> tuple[int, str, str] | None:
        """Status, code and message; None: the request may pass."""
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
