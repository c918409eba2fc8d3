"""Tokens of jobs: the attempt that a token belongs to, and whether it runs now.

A job may use MLflow, report versions, scores and exports of its team's models, and send profiles of
its team's data. It moves no alias and sets no gate.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable

from gangline_gateway.live_model import LiveJob
from gangline_gateway.mlflow_routes import Refused
from gangline_gateway.mlflow_scope import JobScope
from gangline_gateway.problems import ProblemError, unavailable
from gangline_schemas.mlflow_workspace import team_of, workspace_of
from gangline_service.job_tokens import SECRET_KEY, JobAttempt, read_token
from gangline_service.tokens import Principal, Role
from gangline_storage.errors import StoreError
from gangline_storage.port import ObjectStore
from gangline_storage.shared_secret import SharedSecret

_REPORTS = re.compile(
    r"^/v1/(?:profiles|models/[^/]+/versions(?:/[0-9]+/(?:evaluations|serving))?)$"
)


def is_report(method: str, path: str) -> bool:
    """Whether a request reports about a model or data, which jobs may do too."""
    return method == "POST" and _REPORTS.fullmatch(path) is not None


class JobTokens:
    """Belongs to one event loop. `find` gives the newest known row of a job."""

    def __init__(self, store: ObjectStore, find: Callable[[str], LiveJob | None]) -> None:
        self._shared = SharedSecret(store, SECRET_KEY)
        self._find = find
        self._secret: bytes | None = None

    async def authenticate(self, token: str) -> JobAttempt | None:
        """The attempt of a token; None: not valid. Raises a 503 problem without the store."""
        if self._secret is None:
            try:
                self._secret = await asyncio.to_thread(self._shared.value)
            except StoreError:
                raise unavailable(
                    "store", "the object store does not answer, so tokens cannot be checked"
                ) from None
        return read_token(self._secret, token)

    def reporter(self, of: JobAttempt) -> Principal:
        """The sender of reports of an attempt that has its GPUs: its user, in the job's team alone.

        Raises a 403 or 503 problem for any other attempt.
        """
        try:
            scope = self.scope(of)
        except Refused as error:
            raise ProblemError(error.status, "job-token", str(error)) from None
        job = self._find(of.job_id)
        name = job.user if job is not None and job.user else f"job {of.job_id}"
        teams = frozenset({team_of(scope.workspace)})
        return Principal(name=name, role=Role.MEMBER, teams=teams, via="job")

    def scope(self, of: JobAttempt) -> JobScope:
        """The scope of an attempt that has its GPUs. Raises Refused for any other one.

        The gateway follows the scheduler's log, so a new attempt may be ahead of it.
        """
        job = self._find(of.job_id)
        if job is None or job.attempt < of.attempt:
            raise Refused(
                503, "TEMPORARILY_UNAVAILABLE", "the gateway does not know this attempt yet"
            )
        if job.ended or job.attempt != of.attempt or job.released >= of.attempt:
            raise Refused(
                403, "PERMISSION_DENIED", "the token is of an attempt of a job that has ended"
            )
        try:
            return JobScope(of.job_id, of.attempt, workspace_of(job.team))
        except ValueError as error:
            raise Refused(403, "PERMISSION_DENIED", str(error)) from None
