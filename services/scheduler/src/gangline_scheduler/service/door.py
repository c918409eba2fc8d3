"""A small HTTP door to ask the scheduler: GET /v1/explain/{job_id} and POST /v1/what-if.

Read-only: it looks at a copy of the state (asking.py of gangline_service) and answers from that
in a child process (apart.py), so that no question slows a cycle down. A token of the role service
or admin is needed, since answers show every team's jobs; the gateway asks, and hides what a caller
may not see. Bound to loopback it answers only to its own name and to no web page; elsewhere it
speaks TLS (config.py). A body is at most `BODY_LIMIT_BYTES`, a request takes at most
`SEND_TIMEOUT_S` to arrive, and `AT_ONCE` questions are worked on at a time: what is beyond gets
503 and may ask again, and so does what takes longer than `WORK_S`.
"""

from __future__ import annotations

import json
import re
import ssl
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Literal

import structlog
from pydantic import ValidationError

from gangline_scheduler.core import questions
from gangline_scheduler.core.decide import Scheduler
from gangline_scheduler.core.policy.config import Policy
from gangline_scheduler.core.state import State
from gangline_schemas.base import FieldError, field_errors
from gangline_schemas.job import JobSpec
from gangline_service.apart import TookTooLong, apart
from gangline_service.asking import Asked, NoLookError, StandsByError
from gangline_service.bound_address import BoundAddress
from gangline_service.loopback import is_loopback
from gangline_service.thread_server import ThreadServer
from gangline_service.tokens import Role, TokenBook

log = structlog.get_logger(__name__)

BODY_LIMIT_BYTES = 1 << 20
SEND_TIMEOUT_S = 5.0
LOOK_TIMEOUT_S = 1.5
WORK_S = 2.0
AT_ONCE = 2
CONNECTIONS = 16
_EXPLAIN = re.compile(r"/v1/explain/([a-z0-9][a-z0-9-]{0,62})")
_WHAT_IF = "/v1/what-if"


@dataclass(frozen=True, slots=True)
class Reply:
    """Status and JSON of an answer."""

    status: HTTPStatus
    body: bytes


def refusal(status: HTTPStatus, code: str, detail: str, errors: Sequence[FieldError] = ()) -> Reply:
    """What went wrong and the way out; never what was sent."""
    content = {"code": code, "detail": detail, "errors": [item.data() for item in errors]}
    return Reply(status, json.dumps(content).encode())


class Desk:
    """Answers questions, a few at a time."""

    def __init__(
        self,
        asked: Asked[State],
        scheduler: Scheduler,
        policy: Policy,
        *,
        work_s: float = WORK_S,
    ) -> None:
        self._asked = asked
        self._work_s = work_s
        self._scheduler = scheduler
        self._policy = policy
        self._slots = threading.BoundedSemaphore(AT_ONCE)

    def explain(self, job_id: str) -> Reply:
        """Why a pending job waits; 404 when no such job waits."""
        return self._at_a_time(partial(self._explain, job_id))

    def what_if(self, body: bytes) -> Reply:
        """What a job with this spec would do; 422 names what is wrong with it."""
        try:
            spec = JobSpec.model_validate_json(body)
        except ValidationError as error:
            found = field_errors(error, model=JobSpec)
            detail = f"{found[0].field}: {found[0].message}"
            return refusal(HTTPStatus.UNPROCESSABLE_ENTITY, "invalid", detail, found)
        return self._at_a_time(partial(self._what_if, spec))

    def _at_a_time(self, answer: Callable[[], bytes]) -> Reply:
        if not self._slots.acquire(blocking=False):
            detail = f"{AT_ONCE} questions are being answered; ask again"
            return refusal(HTTPStatus.SERVICE_UNAVAILABLE, "busy", detail)
        try:
            found = answer()
        except StandsByError as error:
            return refusal(HTTPStatus.SERVICE_UNAVAILABLE, "stands-by", str(error))
        except (NoLookError, TookTooLong) as error:
            return refusal(HTTPStatus.SERVICE_UNAVAILABLE, "busy", str(error))
        finally:
            self._slots.release()
        if not found:
            return refusal(HTTPStatus.NOT_FOUND, "not-found", "no such job waits")
        return Reply(HTTPStatus.OK, found)

    def _explain(self, job_id: str) -> bytes:
        state, now = self._asked.look(questions.moment, LOOK_TIMEOUT_S), datetime.now(UTC)

        def work() -> bytes:
            found = questions.explain(state, job_id, now, self._policy)
            return b"" if found is None else found.encode()

        return apart(work, self._work_s) if job_id in state.pending else b""

    def _what_if(self, spec: JobSpec) -> bytes:
        state = self._asked.look(
            lambda live: questions.moment(live, spec.resume_from), LOOK_TIMEOUT_S
        )
        now = datetime.now(UTC)

        def work() -> bytes:
            return questions.what_if(self._scheduler, state, spec, now, self._policy).encode()

        return apart(work, self._work_s)


class TlsFileError(Exception):
    """Certificate or key cannot be used; the message names the settings and says why."""


def tls_of(files: tuple[Path, Path] | None) -> ssl.SSLContext | None:
    """What serves this certificate and key; None for plain HTTP. Raises TlsFileError."""
    if files is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        # A password is never asked for: nobody sits there.
        context.load_cert_chain(*files, password="")
    except OSError as error:
        raise TlsFileError(
            "GANGLINE_QUESTION_TLS_CERT and GANGLINE_QUESTION_TLS_KEY cannot be used "
            f"({error.strerror or error}): name a certificate and its own key without a "
            "password, as PEM files that this process may read"
        ) from None
    return context


class Door:
    """The server of a `Desk`. Raises OSError when the address cannot be bound."""

    def __init__(
        self,
        desk: Desk,
        tokens: TokenBook,
        *,
        instance: str,
        host: str = "127.0.0.1",
        port: int = 0,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.desk = desk
        self.tokens = tokens
        self.loopback = is_loopback(host)
        self._server = _Server((host, port), self)
        if tls is not None:
            # The handshake is the request's thread's: a silent client holds up nobody else.
            self._server.socket = tls.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
        scheme: Literal["http", "https"] = "http" if tls is None else "https"
        self.address = BoundAddress.of("scheduler", instance, host, self._server.port, scheme)

    def start(self) -> None:
        """Begin to answer."""
        self._server.start()

    def close(self) -> None:
        """Stop answering."""
        self._server.close()

    def refused(self, handler: BaseHTTPRequestHandler) -> Reply | None:
        """Why this request is not let in; None when it is."""
        headers = handler.headers
        hosts = headers.get_all("Host") or []
        name = hosts[0].rpartition(":")[0].strip("[]").lower() if len(hosts) == 1 else ""
        if "Origin" in headers or not name or (self.loopback and not is_loopback(name)):
            return refusal(HTTPStatus.FORBIDDEN, "forbidden", "wrong Host, or an Origin")
        scheme, _, token = headers.get("Authorization", "").partition(" ")
        principal = self.tokens.authenticate(token.strip()) if scheme.lower() == "bearer" else None
        if principal is None:
            return refusal(HTTPStatus.UNAUTHORIZED, "no-token", "give a token of a service")
        if principal.role is Role.MEMBER:
            return refusal(HTTPStatus.FORBIDDEN, "forbidden", "ask the gateway instead")
        return None


class _Server(ThreadServer):
    def __init__(self, address: tuple[str, int], door: Door) -> None:
        self.door = door
        super().__init__(address, _Handler, name="door", close_within_s=0.2, at_once=CONNECTIONS)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = SEND_TIMEOUT_S

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def _answer(self) -> None:
        door = self.server.door
        path = self.path.partition("?")[0]
        reply = door.refused(self) or self._route(door.desk, path)
        self.server.arrived(self.connection)
        self.send_response_only(reply.status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(reply.body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        if reply.status is HTTPStatus.SERVICE_UNAVAILABLE:
            self.send_header("Retry-After", "1")
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(reply.body)
        log.info("question", path=path[:100], status=int(reply.status))

    def _route(self, desk: Desk, path: str) -> Reply:
        job = _EXPLAIN.fullmatch(path)
        if self.command == "GET" and job is not None:
            self.server.arrived(self.connection)
            return desk.explain(job[1])
        if self.command == "POST" and path == _WHAT_IF:
            return self._read() or desk.what_if(self._body)
        known = job is not None or path == _WHAT_IF
        status = HTTPStatus.METHOD_NOT_ALLOWED if known else HTTPStatus.NOT_FOUND
        detail = "use GET /v1/explain/{job_id} or POST /v1/what-if"
        return refusal(status, "no-such-route", detail)

    def _read(self) -> Reply | None:
        """Read the body; a refusal when it is too large or says no length."""
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdigit()):
            return refusal(HTTPStatus.LENGTH_REQUIRED, "malformed", "give a Content-Length")
        if len(length) > 9 or int(length) > BODY_LIMIT_BYTES:
            detail = f"the body is above {BODY_LIMIT_BYTES:,} bytes"
            return refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "too-large", detail)
        self._body = self.rfile.read(int(length))
        self.server.arrived(self.connection)
        return None

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Logged by `_answer`, without what was sent."""
