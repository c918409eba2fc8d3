"""Checks each request before the routes: host, origin, token, limits and size.

1. Host: only known names are answered, since browsers reach loopback by DNS rebinding (421).
2. Origin: requests from pages of other origins are rejected (403).
3. Token: `Authorization: Bearer ...` must be in the file of tokens (401). From here on the
   connection counts as the user's (gangline_service.connections). For MLflow, the token may also
   be the password of HTTP basic, or that of a job (mlflow_jobs.py). A node joins with a token of
   its own (node_tokens.py). A browser's session
   (sign_in.py) stands for a token; its changes must name an origin of the gateway. A browser that
   asks for a page without one is sent to the form. A stream ends soon after its token is revoked or
   changed, or its session has ended (sse.py).
4. Limits: a user's connections, rate and unanswered requests are bounded (429).
5. Size: large bodies (413) and headers (431) are rejected, and bodies that arrive too slowly (408).

Then the request runs in its own span, is counted and logged in one line: method, route, status,
time and token name. Of MLflow's requests only failed ones are logged. Queries, headers and bodies
are never logged. Its changes are recorded in the audit log (audit.py).
"""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from urllib.parse import urlsplit

import structlog
from opentelemetry.metrics import Meter
from opentelemetry.trace import Tracer, format_trace_id
from starlette.datastructures import Headers
from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gangline_bus.tracing import context_of
from gangline_gateway import audit, problems
from gangline_gateway.access_tokens import AccessTokens
from gangline_gateway.audit import ACCESS, AuditLog
from gangline_gateway.body_limits import (
    FORM_LIMIT_BYTES,
    JSON_LIMIT_BYTES,
    SCORES_LIMIT_BYTES,
    check_length,
    limit_of,
    limited,
)
from gangline_gateway.console_proxy import HOME, asks_page, is_console
from gangline_gateway.identities import Identities
from gangline_gateway.mlflow_jobs import JobTokens, is_report
from gangline_gateway.mlflow_routes import check_scope, is_mlflow
from gangline_gateway.node_tokens import NOT_VALID, NodeTokens, in_store, is_join
from gangline_gateway.oidc import flows
from gangline_gateway.oidc.logins import Logins
from gangline_gateway.problems import ProblemError, too_many
from gangline_gateway.sessions import Sessions
from gangline_gateway.sign_in import SignIn, is_session, sign_in_at
from gangline_gateway.sse import MEDIA_TYPE
from gangline_gateway.user_limits import RequestRates, current_user
from gangline_service.http_server import proven
from gangline_service.job_tokens import is_job_token
from gangline_service.tokens import Principal, Role, TokenBook

log = structlog.get_logger(__name__)

ASK_TOKEN = {"WWW-Authenticate": 'Bearer realm="gangline"'}
JOINS_AT_ONCE = 2
"""Join tokens that are looked up at once: anybody may send one, and other routes need threads."""
MLFLOW_ROUTE = "/mlflow/..."
CONSOLE_ROUTE = "/console/..."
_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
"""Anybody may send others, and each would have series of its own."""
_PORTS = {"http": "80", "https": "443"}


@dataclass(frozen=True)
class Names:
    """Host names of the gateway."""

    hosts: frozenset[str]
    scheme: str = "http"

    @classmethod
    def of(cls, port: int, allowed: Iterable[str] = (), scheme: str = "http") -> Names:
        """Loopback's names with the bound port, and the names that the settings allow.

        An allowed name without a port is accepted with the bound port and the scheme's own.
        """
        hosts = {f"{name}:{port}" for name in ("127.0.0.1", "localhost", "[::1]")}
        if _PORTS[scheme] == str(port):
            hosts |= {"127.0.0.1", "localhost", "[::1]"}
        for name in (entry.strip().lower() for entry in allowed):
            bare = name.rpartition("]")[2] if name.startswith("[") else name
            hosts.add(name)
            if ":" not in bare:
                hosts.add(f"{name}:{port}")
        return cls(frozenset(hosts), scheme)

    def knows_host(self, headers: Headers) -> bool:
        """Whether there is exactly one Host header and it names this gateway."""
        hosts = headers.getlist("host")
        return len(hosts) == 1 and hosts[0].lower() in self.hosts

    def knows_origin(self, headers: Headers) -> bool:
        """Whether the request comes from no page or from a page of this gateway."""
        if headers.get("sec-fetch-site", "none") not in {"none", "same-origin"}:
            return False
        return all(self._ours(origin) for origin in headers.getlist("origin"))

    def _ours(self, origin: str) -> bool:
        try:
            parts = urlsplit(origin)
        except ValueError:
            return False
        return parts.scheme == self.scheme and parts.netloc.lower() in self.hosts


@dataclass
class RequestChecks:
    """The middleware that checks, counts and logs requests."""

    app: ASGIApp
    names: Names
    tokens: TokenBook
    meter: Meter
    tracer: Tracer
    rates: RequestRates = field(default_factory=RequestRates)
    mlflow_rates: RequestRates = field(default_factory=RequestRates)
    console_rates: RequestRates = field(default_factory=RequestRates)
    """Of their own: an answer of the console waits for requests of the same user."""
    job_tokens: JobTokens | None = None
    console: bool = False
    """Whether this gateway serves the console."""
    sessions: Sessions = field(default_factory=Sessions)
    node_tokens: NodeTokens | None = None
    audit: AuditLog | None = None
    access_tokens: AccessTokens | None = None
    logins: Logins | None = None

    def __post_init__(self) -> None:
        home = HOME if self.console else "/mlflow/"
        self._who = Identities(self.tokens, self.access_tokens, self.logins)
        self._sign_in = SignIn(self._who, self.names.scheme, home, self.sessions)
        self._joining = asyncio.Semaphore(JOINS_AT_ONCE)
        self._duration = self.meter.create_histogram(
            "gangline.gateway.request.duration",
            unit="s",
            description="Time to answer requests, by method, route and status",
            explicit_bucket_boundaries_advisory=_BUCKETS_S,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Checks, runs, counts and logs one request."""
        if scope["type"] != "http":
            return
        headers = Headers(scope=scope)
        context = context_of(headers.get("traceparent"))
        began = time.perf_counter()
        status, location, note = 0, "", audit.begin()

        async def noted(message: Message) -> None:
            nonlocal status, location
            if message["type"] == "http.response.start":
                status = message["status"]
                location = Headers(raw=message.get("headers", [])).get("location", "")
                message.setdefault("headers", []).extend(
                    [(b"x-content-type-options", b"nosniff"), (b"x-trace-id", trace.encode())]
                )
            await send(message)

        with self.tracer.start_as_current_span("http.request", context=context) as span:
            trace = format_trace_id(span.get_span_context().trace_id)
            scope["trace_id"] = trace
            try:
                await self._admit(scope, headers, receive, noted)
            finally:
                self._note(scope, status, time.perf_counter() - began, trace)
                if self.audit is not None:
                    self.audit.record(scope, note, status, location, trace)

    async def _admit(self, scope: Scope, headers: Headers, receive: Receive, send: Send) -> None:
        rates = self._rates(scope["path"])
        try:
            self._check_names(headers, scope)
            if (place := await self._elsewhere(headers, scope)) is not None:
                await RedirectResponse(place, 303)(scope, receive, send)
                return
            if is_session(scope["path"]):
                await self._session(scope, headers, receive, send)
                return
            principal = await self._check(headers, scope)
            scope.setdefault("state", {})["principal"] = principal
            if is_mlflow(scope["path"]):
                check_scope(principal, scope["method"], scope["path"])
            if not proven(scope, principal.name):
                raise too_many("no more connections", 1)
            limit = limit_of(scope["path"])
            check_length(headers, limit)
            rates.begin(principal.name)
        except ProblemError as error:
            mlflow = is_mlflow(scope["path"])
            await problems.response(error, scope["trace_id"], mlflow=mlflow)(scope, receive, send)
            return
        receive = limited(receive, limit)
        if rates is self.rates and limit in {JSON_LIMIT_BYTES, SCORES_LIMIT_BYTES}:
            receive = _charged(receive, rates, principal.name)
        await self._share(scope, receive, send, principal.name, rates)

    async def _session(self, scope: Scope, headers: Headers, receive: Receive, send: Send) -> None:
        terminal = scope["path"] in {flows.DEVICE, flows.DEVICE_TOKEN}
        if scope["method"] == "POST" and "authorization" not in headers and not terminal:
            self._check_page(headers)
        check_length(headers, FORM_LIMIT_BYTES)
        await self._sign_in(scope, limited(receive, FORM_LIMIT_BYTES), send)

    def _rates(self, path: str) -> RequestRates:
        if is_mlflow(path):
            return self.mlflow_rates
        return self.console_rates if is_console(path) else self.rates

    async def _share(
        self, scope: Scope, receive: Receive, send: Send, user: str, rates: RequestRates
    ) -> None:
        """Runs a request of this user. Once it is a stream, it counts as a stream (sse.py)."""
        counted = True

        def done() -> None:
            nonlocal counted
            if counted:
                rates.end(user)
            counted = False

        async def watched(message: Message) -> None:
            if message["type"] == "http.response.start" and _is_stream(message):
                done()
            await send(message)

        current_user.set(user)
        try:
            await self.app(scope, receive, watched)
        finally:
            done()

    def _check_names(self, headers: Headers, scope: Scope) -> None:
        if not self.names.knows_host(headers):
            raise ProblemError(
                421, "wrong-host",
                "the Host header is not a name of this gateway; "
                "an operator can add the name to GANGLINE_ALLOWED_HOSTS",
            )  # fmt: skip
        from_provider = scope["method"] == "GET" and scope["path"] == flows.CALLBACK
        if not from_provider and not self.names.knows_origin(headers):
            raise ProblemError(
                403, "wrong-origin", "requests from pages of other origins are rejected"
            )

    def _check_page(self, headers: Headers) -> None:
        """A change that a browser's cookie allows must come from a page of this gateway."""
        if "origin" not in headers and headers.get("sec-fetch-site") != "same-origin":
            raise ProblemError(
                403, "wrong-origin", "a change in a session needs the Origin header of its page"
            )

    async def _check(self, headers: Headers, scope: Scope) -> Principal:
        if "authorization" in headers:
            token = _token(headers, basic=is_mlflow(scope["path"]))
        else:
            token = self._sign_in.token(headers)
            if token is not None and scope["method"] not in {"GET", "HEAD"}:
                self._check_page(headers)
        principal = await self._principal(token, scope) if token else None
        if token and principal is None:
            audit.note().action = ACCESS
        if token is None or principal is None:
            raise ProblemError(
                401, "no-token", "give a token of this installation: Authorization: Bearer TOKEN",
                headers=ASK_TOKEN,
            )  # fmt: skip
        if "authorization" not in headers:
            audit.note().via = "session"
        state = scope.setdefault("state", {})
        state["still_allowed"] = partial(self._still_allowed, headers, token, principal)
        if is_console(scope["path"]):
            state["token"] = token
        return principal

    async def _still_allowed(self, headers: Headers, token: str, principal: Principal) -> bool:
        """Whether the token of a running request still stands for the same rights."""
        if "authorization" not in headers and self._sign_in.token(headers) != token:
            return False
        try:
            return await self._who.authenticate(token) == principal
        except ProblemError:  # a sign-in that cannot be checked any more
            return False

    async def _principal(self, token: str, scope: Scope) -> Principal | None:
        if is_join(scope["method"], scope["path"]):
            return await self._node(token, scope)
        reports = is_report(scope["method"], scope["path"])
        known = reports or is_mlflow(scope["path"])
        if self.job_tokens is None or not known or not is_job_token(token):
            return await self._who.authenticate(token)
        attempt = await self.job_tokens.authenticate(token)
        if attempt is None:
            return None
        if reports:
            return self.job_tokens.reporter(attempt)
        scope.setdefault("state", {})["job"] = attempt
        return Principal(name=f"job {attempt.job_id}", role=Role.MEMBER, teams=frozenset())

    async def _node(self, token: str, scope: Scope) -> Principal:
        """A node that joins, which may do nothing else. Raises a 401 or 503 problem."""
        tokens = self.node_tokens
        async with self._joining:
            found = await in_store(tokens.find, token) if tokens is not None else None
        if found is None:
            audit.note().action = ACCESS
            raise ProblemError(401, "no-token", NOT_VALID, headers=ASK_TOKEN)
        scope.setdefault("state", {})["node_token"] = token
        return Principal(name="a joining node", role=Role.MEMBER, teams=frozenset())

    async def _elsewhere(self, headers: Headers, scope: Scope) -> str | None:
        """Where a browser must go instead: from / to the console, without a session to the form."""
        path = scope["path"]
        if not asks_page(scope, headers):
            return None
        if path == "/" and self.console:
            return HOME
        is_page = is_mlflow(path) or (self.console and is_console(path))
        if not is_page or "authorization" in headers:
            return None
        token = self._sign_in.token(headers)
        if token and await self._who.authenticate(token):
            return None
        return sign_in_at(path, scope["query_string"].decode("latin1"))

    def _note(self, scope: Scope, status: int, seconds: float, trace: str) -> None:
        route = getattr(scope.get("route"), "path", "(none)")
        if is_mlflow(scope["path"]):
            route = MLFLOW_ROUTE
        elif is_console(scope["path"]):
            route = CONSOLE_ROUTE
        method = scope["method"] if scope["method"] in _METHODS else "(other)"
        labels = {"method": method, "route": route, "status": str(status)}
        self._duration.record(seconds, labels)
        if route == MLFLOW_ROUTE and status < 400:
            return  # thousands a second
        principal: Principal | None = scope.get("state", {}).get("principal")
        log.info(
            "request",
            **labels,
            ms=round(seconds * 1000, 1),
            user=principal.name if principal else None,
            trace=trace,
        )


def _charged(receive: Receive, rates: RequestRates, user: str) -> Receive:
    """Counts a body that is read as a whole, and checked on the event loop."""

    async def counted() -> Message:
        message = await receive()
        rates.charge(user, len(message.get("body", b"")))
        return message

    return counted


def _token(headers: Headers, *, basic: bool) -> str | None:
    """The token; with `basic`, also one that was given as a password."""
    given = headers.getlist("authorization")
    scheme, _, credentials = (given[0] if len(given) == 1 else "").partition(" ")
    if scheme.lower() == "bearer":
        return credentials.strip()
    if not basic or scheme.lower() != "basic":
        return None
    try:
        return base64.b64decode(credentials, validate=True).decode().partition(":")[2]
    except ValueError:
        return None


def _is_stream(message: Message) -> bool:
    kind = Headers(raw=message.get("headers", [])).get("content-type", "")
    return kind.startswith(MEDIA_TYPE)
