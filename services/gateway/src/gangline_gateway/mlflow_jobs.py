"""Tokens of jobs: which attempt one stands for, and whether that attempt runs now."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gangline_gateway.live_model import LiveJob
from gangline_gateway.mlflow_door import Refused
from gangline_gateway.mlflow_scope import JobScope
from gangline_gateway.problems import unavailable
from gangline_schemas.mlflow_workspace import workspace_of
from gangline_service.job_tokens import SECRET_KEY, JobAttempt, read_token
from gangline_storage.errors import StoreError
from gangline_storage.port import ObjectStore
from gangline_storage.shared_secret import SharedSecret


class JobTokens:
    """Belongs to one event loop. `find` gives the newest known row of a job."""

    def __init__(self, store: ObjectStore, find: Callable[[str], LiveJob | None]) -> None:
        self._shared = SharedSecret(store, SECRET_KEY)
        self._find = find
        self._secret: bytes | None = None

    async def authenticate(self, token: str) -> JobAttempt | None:
        """The attempt of a token; None: it is no token. Raises a 503 problem without the store."""
        if self._secret is None:
            try:
                self._secret = await asyncio.to_thread(self._shared.value)
            except StoreError:
                raise unavailable(
                    "store", "the object store does not answer, so tokens cannot be checked"
                ) from None
        return read_token(self._secret, token)

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
