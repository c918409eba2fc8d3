"""/mlflow: hands requests on to the MLflow server of this installation, and its answers back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import structlog
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from gangline_gateway.mlflow_jobs import JobTokens
from gangline_gateway.mlflow_routes import PREFIX, Passed, Refused, check_source, enter, job_path
from gangline_gateway.mlflow_scope import narrow
from gangline_gateway.upstream import (
    WHOLE_BYTES,
    NoUpstreamError,
    Upstream,
    answer,
    headers_of,
    pieces,
    whole_body,
)
from gangline_schemas.mlflow_workspace import JOB_HEADER, team_of
from gangline_service.job_tokens import JobAttempt
from gangline_service.tokens import Principal

log = structlog.get_logger(__name__)

_OWN = ("x-mlflow-workspace", JOB_HEADER)
"""Headers that the gateway sets."""
_OF_JOBS = frozenset({"accept", "accept-encoding", "user-agent", "range"})
_OF_FILES = frozenset({"content-type", "content-length"})
"""Of a request of a job, these headers are handed on."""
LARGE_BYTES = 256 << 10
"""A smaller body is checked within 30 ms. Larger ones, of up to 4 s, are checked in threads."""
_THREADS = ThreadPoolExecutor(2, thread_name_prefix="mlflow-bodies")
CheckedT = TypeVar("CheckedT")


@dataclass(frozen=True, slots=True)
class _Request:
    """As MLflow gets it. `target`: path and query, quoted."""

    workspace: str
    target: str
    headers: list[tuple[str, str]]
    body: bytes | AsyncIterator[bytes]


@dataclass
class MlflowProxy:
    """An ASGI application; belongs to one event loop."""

    url: str
    token: str = field(repr=False)
    jobs: JobTokens | None = None
    has_team: Callable[[str], bool] = lambda _: True
    """Whether there is such a team. An admin may name any, and MLflow makes its workspace."""

    def __post_init__(self) -> None:
        # The first request after a start waits until MLflow is loaded.
        self._upstream = Upstream(self.url, answer_s=120.0)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request of a caller that is known."""
        if scope["path"] == PREFIX:
            location = (b"location", f"{PREFIX}/".encode())
            await answer(send, 307, [location, (b"content-length", b"0")], b"")
            return
        try:
            job: JobAttempt | None = scope["state"].get("job")
            if job is not None:
                request = await self._of_job(job, scope, receive)
            else:
                request = await self._of_user(scope, receive)
            await self._hand_on(request, scope["method"], send)
        except Refused as error:
            await _refuse(send, error)
        except HTTPException as error:  # a body that is too large or too slow
            await _refuse(send, Refused(error.status_code, "BAD_REQUEST", str(error.detail)))
        except ConnectionResetError:  # the client has gone
            return

    async def _of_user(self, scope: Scope, receive: Receive) -> _Request:
        caller: Principal = scope["state"]["principal"]
        query = scope["query_string"].decode("latin1")
        if b"#" in scope["raw_path"] + scope["query_string"]:  # what follows it is not sent on
            raise Refused(400, "INVALID_PARAMETER_VALUE", "# is no part of a request")
        passed = enter(scope["path"], query, caller)
        team = team_of(passed.workspace)
        if team not in caller.teams and not self.has_team(team):
            raise Refused(404, "RESOURCE_DOES_NOT_EXIST", f"there is no team {team}")
        body = await _body(scope, receive, whole=passed.makes_version)
        if passed.makes_version:
            assert isinstance(body, bytes)  # noqa: S101 - asked for whole
            await _checked(partial(check_source, workspace=passed.workspace), body)
        target = f"{_raw_path(scope, passed)}{'?' + query if query else ''}"
        return _Request(passed.workspace, target, headers_of(scope, *_OWN), body)

    async def _of_job(self, job: JobAttempt, scope: Scope, receive: Receive) -> _Request:
        if self.jobs is None:
            raise Refused(403, "PERMISSION_DENIED", "tokens of jobs are not accepted here")
        within = self.jobs.scope(job)
        query = scope["query_string"].decode("latin1")
        inner = job_path(scope["path"], within.workspace)
        narrowed = narrow(scope["method"], inner, query, within)
        headers = [header for header in headers_of(scope, *_OWN) if header[0] in _OF_JOBS]
        body: bytes | AsyncIterator[bytes] = b""
        if narrowed.sends_file:
            body = await _body(scope, receive, whole=False)
            headers += [header for header in headers_of(scope, *_OWN) if header[0] in _OF_FILES]
        elif narrowed.rewrite is not None:
            body = await _checked(narrowed.rewrite, await whole_body(receive))
            headers.append(("content-type", "application/json"))
        headers.append((JOB_HEADER, job.job_id))
        target = narrowed.path + (f"?{narrowed.query}" if narrowed.query else "")
        return _Request(within.workspace, target, headers, body)

    async def _hand_on(self, request: _Request, method: str, send: Send) -> None:
        headers = [
            *request.headers,
            ("authorization", f"Bearer {self.token}"),
            ("x-mlflow-workspace", request.workspace),
        ]
        try:
            await self._upstream.hand_on(method, request.target, headers, request.body, send)
        except NoUpstreamError as error:
            log.warning("MLflow did not answer", error=str(error))
            raise Refused(
                503, "TEMPORARILY_UNAVAILABLE", "the MLflow server does not answer; try again"
            ) from None

    async def close(self) -> None:
        """Close its connections."""
        await self._upstream.close()


def _raw_path(scope: Scope, passed: Passed) -> str:
    """The path as the client spelled it, without the gateway's part."""
    raw: str = scope["raw_path"].decode("latin1")
    own = scope["path"].removesuffix(passed.path)
    if not raw.startswith(own):  # the gateway's part has nothing that must be quoted
        raise Refused(400, "INVALID_PARAMETER_VALUE", "the path is spelled in an unusual way")
    return raw.removeprefix(own)


async def _body(scope: Scope, receive: Receive, *, whole: bool) -> bytes | AsyncIterator[bytes]:
    """The whole body when it is small or must be seen, else its pieces as they come."""
    headers = scope["headers"]
    length = next((int(value) for name, value in headers if name == b"content-length"), None)
    if whole or (length is not None and length <= WHOLE_BYTES):
        return await whole_body(receive)
    if length is None and not any(name == b"transfer-encoding" for name, _ in headers):
        return b""
    return pieces(receive)


async def _checked(check: Callable[[bytes], CheckedT], body: bytes) -> CheckedT:
    """The result of a check of a body. Raises what the check raises."""
    if len(body) <= LARGE_BYTES:
        return check(body)
    return await asyncio.get_running_loop().run_in_executor(_THREADS, check, body)


async def _refuse(send: Send, error: Refused) -> None:
    """As MLflow's client reads errors."""
    body = json.dumps({"error_code": error.code, "message": str(error)}).encode()
    kind = (b"content-type", b"application/json")
    await answer(send, error.status, [kind, (b"content-length", str(len(body)).encode())], body)
