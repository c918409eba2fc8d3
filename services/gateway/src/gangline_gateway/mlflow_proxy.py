"""/mlflow: hands requests on to the MLflow server of this installation, and its answers back."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field

import aiohttp
import structlog
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send
from yarl import URL

from gangline_gateway.mlflow_door import PREFIX, Passed, Refused, check_source, enter, inside
from gangline_gateway.mlflow_jobs import JobTokens
from gangline_gateway.mlflow_scope import narrow
from gangline_schemas.mlflow_workspace import JOB_HEADER, team_of
from gangline_service.job_tokens import JobAttempt
from gangline_service.tokens import Principal

log = structlog.get_logger(__name__)

Headers = Iterable[tuple[bytes, bytes]]
_WHOLE_BYTES = 1 << 20
"""Bodies up to here are handed on in one piece."""
_CONNECT_S, _ANSWER_S = 5.0, 120.0
"""The first request after a start waits until MLflow is loaded."""
_DROPPED = frozenset(
    {
        # of a connection
        b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"te",
        b"trailer", b"transfer-encoding", b"upgrade", b"host", b"expect",
        # the gateway has checked them, or sets its own
        b"authorization", b"x-mlflow-workspace", b"origin", b"referer", b"cookie",
        b"forwarded", b"x-forwarded-for", b"x-forwarded-host", b"x-forwarded-proto",
        b"x-forwarded-prefix", b"x-real-ip", JOB_HEADER.encode(),
    }
)  # fmt: skip
_OF_JOBS = frozenset({"accept", "accept-encoding", "user-agent", "range"})
_OF_FILES = frozenset({"content-type", "content-length"})
"""Of a request of a job, these headers are handed on."""


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
        self._session: aiohttp.ClientSession | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request of a caller that is known."""
        if scope["path"] == PREFIX:
            location = (b"location", f"{PREFIX}/".encode())
            await _answer(send, 307, [location, (b"content-length", b"0")], b"")
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
        body = await _body(scope["headers"], receive, whole=passed.makes_version)
        if passed.makes_version:
            assert isinstance(body, bytes)  # noqa: S101 - asked for whole
            check_source(body, passed.workspace)
        target = f"{_raw_path(scope, passed)}{'?' + query if query else ''}"
        return _Request(passed.workspace, target, _headers(scope), body)

    async def _of_job(self, job: JobAttempt, scope: Scope, receive: Receive) -> _Request:
        if self.jobs is None:
            raise Refused(403, "PERMISSION_DENIED", "tokens of jobs are not accepted here")
        within = self.jobs.scope(job)
        query = scope["query_string"].decode("latin1")
        inner = inside(scope["path"], within.workspace)
        narrowed = narrow(scope["method"], inner, query, within)
        headers = [header for header in _headers(scope) if header[0] in _OF_JOBS]
        body: bytes | AsyncIterator[bytes] = b""
        if narrowed.sends_file:
            body = await _body(scope["headers"], receive, whole=False)
            headers += [header for header in _headers(scope) if header[0] in _OF_FILES]
        elif narrowed.rewrite is not None:
            body = narrowed.rewrite(await _whole(receive))
            headers.append(("content-type", "application/json"))
        headers.append((JOB_HEADER, job.job_id))
        target = narrowed.path + (f"?{narrowed.query}" if narrowed.query else "")
        return _Request(within.workspace, target, headers, body)

    async def _hand_on(self, request: _Request, method: str, send: Send) -> None:
        is_whole = isinstance(request.body, bytes)
        headers = [
            *(item for item in request.headers if not is_whole or item[0] != "content-length"),
            ("authorization", f"Bearer {self.token}"),
            ("x-mlflow-workspace", request.workspace),
        ]
        url = URL(f"{self.url}{request.target}", encoded=True)
        try:
            response = await self._client().request(
                method, url, headers=headers, data=request.body or None, allow_redirects=False
            )
        except (aiohttp.ClientConnectionError, TimeoutError) as error:
            log.warning("MLflow did not answer", error=repr(error)[:300])
            raise Refused(
                503, "TEMPORARILY_UNAVAILABLE", "the MLflow server does not answer; try again"
            ) from None
        async with response:
            await _hand_back(response, send)

    def _client(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                # No limit: the gateway bounds each user's requests. Slow uploads of one must not
                # hold up the others.
                connector=aiohttp.TCPConnector(limit=0),
                timeout=aiohttp.ClientTimeout(
                    total=None, sock_connect=_CONNECT_S, sock_read=_ANSWER_S
                ),
                auto_decompress=False,
                cookie_jar=aiohttp.DummyCookieJar(),
                skip_auto_headers=("user-agent", "accept", "accept-encoding", "content-type"),
            )
        return self._session


def _headers(scope: Scope) -> list[tuple[str, str]]:
    return [
        (name.decode("latin1"), value.decode("latin1"))
        for name, value in scope["headers"]
        if name not in _DROPPED
    ]


def _raw_path(scope: Scope, passed: Passed) -> str:
    """The path as the client spelled it, without the gateway's part."""
    raw: str = scope["raw_path"].decode("latin1")
    own = scope["path"].removesuffix(passed.path)
    if not raw.startswith(own):  # the gateway's part has nothing that must be quoted
        raise Refused(400, "INVALID_PARAMETER_VALUE", "the path is spelled in an unusual way")
    return raw.removeprefix(own)


async def _body(headers: Headers, receive: Receive, *, whole: bool) -> bytes | AsyncIterator[bytes]:
    """The whole body when it is small or must be seen, else its pieces as they come."""
    length = next((int(value) for name, value in headers if name == b"content-length"), None)
    if whole or (length is not None and length <= _WHOLE_BYTES):
        return await _whole(receive)
    if length is None and not any(name == b"transfer-encoding" for name, _ in headers):
        return b""
    return _pieces(receive)


async def _whole(receive: Receive) -> bytes:
    return b"".join([piece async for piece in _pieces(receive)])


async def _pieces(receive: Receive) -> AsyncIterator[bytes]:
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ConnectionResetError
        if message.get("body"):
            yield message["body"]
        if not message.get("more_body"):
            return


async def _hand_back(response: aiohttp.ClientResponse, send: Send) -> None:
    headers = [
        (name.lower(), value)
        for name, value in response.raw_headers
        if name.lower() not in _DROPPED and name.lower() != b"x-content-type-options"
    ]
    length = response.content_length
    if length is not None and length <= _WHOLE_BYTES:
        await _answer(send, response.status, headers, await response.read())
        return
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    async for piece in response.content.iter_any():
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def _answer(send: Send, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _refuse(send: Send, error: Refused) -> None:
    """As MLflow's client reads errors."""
    body = json.dumps({"error_code": error.code, "message": str(error)}).encode()
    kind = (b"content-type", b"application/json")
    await _answer(send, error.status, [kind, (b"content-length", str(len(body)).encode())], body)
