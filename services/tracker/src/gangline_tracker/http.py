"""ClickHouse's HTTP protocol, read-only, over the embedded engine: for Grafana and other clients.

A token is the password (X-ClickHouse-Key, HTTP basic or bearer); the user name says nothing.
Answers are whole: the engine's rows are complete before the first byte is sent, so an error never
stands in the middle of a result. Settings that clients send are accepted and have no effect.
"""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import structlog
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from gangline_service.http_server import proven
from gangline_service.request_body import BodyTooLarge, BodyTooSlow, bounded
from gangline_service.tokens import Principal, Role, TokenBook
from gangline_tracker import hello
from gangline_tracker.form import FORM, fields
from gangline_tracker.ingest import METRICS
from gangline_tracker.loopback import is_local, token_of
from gangline_tracker.query_turns import QueryTurns, TooManyOfUser
from gangline_tracker.reader import Answer, QueryFailed, QueryReader
from gangline_tracker.sql_guard import SqlRefused
from gangline_tracker.sql_names import FORMATS

log = structlog.get_logger(__name__)

MAX_BODY_BYTES = 1 << 20
DISPLAY_NAME = "gangline"
_AUTHENTICATION_FAILED = 516
_REFUSED = 497  # ACCESS_DENIED
_TOO_MANY_QUERIES = 202
_PARAMETER = "param_"
THREADS = 8
"""More than the queries that run at once by default: one that is refused does not wait for them."""
_CONTENT_TYPES = {"JSON": "application/json; charset=UTF-8", "Native": "application/octet-stream"}


class ProtocolError(Exception):
    """An answer that is an error, in ClickHouse's form."""

    def __init__(
        self, status: int, code: int, message: str, *, retry_after_s: int | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.headers = {} if retry_after_s is None else {"Retry-After": str(retry_after_s)}


class ClickHouseEndpoint:
    """The application. A header gives clients the engine's time zone.

    Gangline's own services have a reader and threads of their own, so outside queries never delay
    them.
    """

    def __init__(
        self,
        reader: QueryReader,
        own: QueryReader,
        tokens: TokenBook,
        *,
        threads: int = THREADS,
        turns: QueryTurns | None = None,
        wanted: threading.Event | None = None,
    ) -> None:
        """`wanted` is set when one of our services asks for points of metrics."""
        self._wanted = wanted
        self._turns = turns or QueryTurns()
        self._lanes = {
            of_service: (lane, ThreadPoolExecutor(threads, thread_name_prefix="query"))
            for of_service, lane in ((False, reader), (True, own))
        }
        self._tokens = tokens
        self._version, self._time_zone = _engine(reader)
        self.app = Starlette(
            routes=[
                Route("/ping", _alive),
                Route("/replicas_status", _alive),
                Route("/", self._serve, methods=["GET", "POST"]),
            ]
        )

    async def _serve(self, request: Request) -> Response:
        query_id = request.query_params.get("query_id") or str(uuid.uuid4())
        try:
            if not is_local(request):
                raise ProtocolError(403, _REFUSED, "wrong Host, or an Origin. (ACCESS_DENIED)")
            principal = self._principal(request)
            text, asked = await _question(request)
            if not text.strip():
                return PlainTextResponse("Ok.\n")
            if text.strip() == hello.QUESTION:
                body = hello.answer(DISPLAY_NAME, self._version, self._time_zone)
                return self._success(Answer(body, "Native"), query_id)
            answer = await self._query(asked, text, principal)
        except ProtocolError as error:
            return _failure(error, query_id)
        return self._success(answer, query_id)

    async def _query(self, asked: Mapping[str, str], text: str, principal: Principal) -> Answer:
        default_format = asked.get("default_format")
        if default_format is not None and default_format not in FORMATS:
            raise ProtocolError(400, 73, f"the format {default_format[:40]} is not served")
        if asked.get("database", "gangline") not in {"gangline", "default"}:
            raise ProtocolError(404, 81, "the only database is gangline")
        parameters = {
            name.removeprefix(_PARAMETER): value
            for name, value in asked.items()
            if name.startswith(_PARAMETER)
        }
        teams = None if principal.all_teams else principal.teams

        reader, pool = self._lanes[principal.role is Role.SERVICE]

        def run() -> Answer:
            return reader.query(text, teams, parameters=parameters, default_format=default_format)

        try:
            if principal.role is Role.SERVICE:
                if self._wanted is not None and METRICS.table in text:
                    self._wanted.set()
                return await asyncio.get_running_loop().run_in_executor(pool, run)
            async with self._turns.of(principal.name):
                return await asyncio.get_running_loop().run_in_executor(pool, run)
        except SqlRefused as error:
            log.info("query refused", principal=principal.name, reason=str(error))
            raise ProtocolError(403, _REFUSED, f"{error}. (ACCESS_DENIED)") from None
        except QueryFailed as error:
            raise ProtocolError(400, error.code, str(error)) from None
        except TooManyOfUser as error:
            raise ProtocolError(429, _TOO_MANY_QUERIES, str(error), retry_after_s=2) from None

    def _principal(self, request: Request) -> Principal:
        token = token_of(request)
        principal = self._tokens.authenticate(token) if token else None
        if principal is None:
            raise ProtocolError(
                401,
                _AUTHENTICATION_FAILED,
                "give a token as the password. (AUTHENTICATION_FAILED)",
            )
        if not proven(request.scope, principal.name):
            raise ProtocolError(
                429, _TOO_MANY_QUERIES, "your token has too many connections", retry_after_s=1
            )
        return principal

    def _success(self, answer: Answer, query_id: str) -> Response:
        headers = {
            "X-ClickHouse-Format": answer.format,
            "X-ClickHouse-Timezone": self._time_zone,
            **_common(query_id),
        }
        kind = _CONTENT_TYPES.get(answer.format, "text/plain; charset=UTF-8")
        return Response(answer.body, headers=headers, media_type=kind)


def _engine(reader: QueryReader) -> tuple[str, str]:
    """The engine's version and time zone."""
    version, zone = reader.query("SELECT version(), timezone()", None).body.decode().split()
    return version, zone


async def _alive(_: Request) -> Response:
    return PlainTextResponse("Ok.\n")


async def _question(request: Request) -> tuple[str, Mapping[str, str]]:
    """The text of the query, and what else is asked for by name."""
    if request.headers.get("content-encoding", "identity") != "identity":
        raise ProtocolError(400, 2, "send the query without Content-Encoding")
    within = Request(request.scope, bounded(request.receive, MAX_BODY_BYTES))
    try:
        body = await within.body()
    except BodyTooLarge:
        raise ProtocolError(413, 307, f"the query is above {MAX_BODY_BYTES:,} bytes") from None
    except BodyTooSlow as error:
        raise ProtocolError(408, 209, str(error)) from None
    except ClientDisconnect:
        raise ProtocolError(400, 210, "the client hung up") from None
    asked = dict(request.query_params)
    kind = request.headers.get("content-type", "")
    try:
        if kind.startswith(FORM):
            asked |= fields(kind, body)
            text = ""
        else:
            text = body.decode()
    except UnicodeDecodeError:
        raise ProtocolError(400, 62, "the query is not UTF-8") from None
    except ValueError as error:
        raise ProtocolError(400, 36, f"the form cannot be read: {error}") from None
    first = asked.get("query", "")
    return (f"{first}\n{text}" if first and text.strip() else first or text), asked


def _common(query_id: str) -> dict[str, str]:
    return {
        "X-ClickHouse-Query-Id": query_id if query_id.isascii() and query_id.isprintable() else "-",
        "X-ClickHouse-Server-Display-Name": DISPLAY_NAME,
        "Cache-Control": "no-store",
        "X-Content-Type-Options": "nosniff",
    }


def _failure(error: ProtocolError, query_id: str) -> Response:
    message = str(error)
    if not message.startswith("Code: "):
        message = f"Code: {error.code}. DB::Exception: {message}"
    headers = {
        "X-ClickHouse-Exception-Code": str(error.code),
        **error.headers,
        **_common(query_id),
    }
    return PlainTextResponse(message + "\n", status_code=error.status, headers=headers)
