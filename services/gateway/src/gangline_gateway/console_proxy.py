"""/console: hands requests on to the console, with the caller's own token.

The console is a client of the REST API like any other: it has no rights of its own.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import structlog
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse, Response
from starlette.types import Receive, Scope, Send

from gangline_gateway import problems
from gangline_gateway.plain_page import plain_page
from gangline_gateway.problems import ProblemError, unavailable
from gangline_gateway.upstream import NoUpstreamError, Upstream, headers_of, whole_body

log = structlog.get_logger(__name__)

PREFIX = "/console"
HOME = f"{PREFIX}/"
_METHODS = ("GET", "HEAD", "POST")
_PART = "[A-Za-z0-9_~:@+-][A-Za-z0-9._~:@+-]*"
_PATH = re.compile(f"{HOME}(?:{_PART}/)*(?:{_PART})?")
"""No part is quoted, is empty or begins with a dot, so no program can read a path in two ways."""
_RETRY_S = 2
_AWAY = f"""<p>It may be starting, or it has stopped. This page tries again every {_RETRY_S}
seconds. If that does not help, an operator finds the reason in the log of the service console.</p>
<p>Your jobs are not affected. The command line works meanwhile: <code>gangline list</code>.</p>"""
_AWAY_AFTER_CHANGE = """<p>It is unknown whether your change was made. Go back in a moment, and look
before you try again.</p>"""


def is_console(path: str) -> bool:
    """Whether a path of the gateway is the console's."""
    return path == PREFIX or path.startswith(HOME)


def asks_page(scope: Scope, headers: Headers) -> bool:
    """Whether a browser asks for a whole page, not a script for a part of one."""
    return (
        scope["method"] == "GET"
        and "text/html" in headers.get("accept", "")
        and headers.get("sec-fetch-mode", "navigate") == "navigate"
        and "hx-request" not in headers
    )


@dataclass
class ConsoleProxy:
    """An ASGI application; belongs to one event loop."""

    url: str

    def __post_init__(self) -> None:
        self._upstream = Upstream(self.url, connect_s=2.0, answer_s=60.0)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request of a caller that is known."""
        try:
            if scope["path"] == PREFIX:
                await RedirectResponse(HOME, 307)(scope, receive, send)
                return
            await self._hand_on(scope, receive, send)
        except ProblemError as error:
            await _refused(error, scope)(scope, receive, send)
        except HTTPException as error:  # a body that is too large or too slow
            problem = ProblemError(error.status_code, "bad-body", str(error.detail))
            await _refused(problem, scope)(scope, receive, send)
        except ConnectionResetError:  # the client has gone
            return

    async def _hand_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        method = scope["method"]
        if method not in _METHODS:
            raise ProblemError(
                405, "method-not-allowed", "the console has no such method",
                headers={"Allow": ", ".join(_METHODS)},
            )  # fmt: skip
        target = _target(scope)
        headers = [*headers_of(scope), ("authorization", f"Bearer {scope['state']['token']}")]
        body = await whole_body(receive)
        try:
            await self._upstream.hand_on(method, target, headers, body, send)
        except NoUpstreamError as error:
            log.warning("the console did not answer", error=str(error))
            raise unavailable("no-console", "the console does not answer; try again") from None

    async def close(self) -> None:
        """Close its connections."""
        await self._upstream.close()


def _target(scope: Scope) -> str:
    """Path and query as the client spelled them. Raises a 400 problem."""
    path: str = scope["raw_path"].decode("latin1")
    query: str = scope["query_string"].decode("latin1")
    if not _PATH.fullmatch(path) or "#" in query:  # what follows # is not sent on
        raise ProblemError(400, "malformed", "the console has no such path")
    return f"{path}?{query}" if query else path


def _refused(error: ProblemError, scope: Scope) -> Response:
    """For a browser that would show it, a page; else a problem document."""
    headers = Headers(scope=scope)
    shows = "text/html" in headers.get("accept", "") and "hx-request" not in headers
    if error.status != 503 or not shows:
        return problems.response(error, scope.get("trace_id"))
    again = {} if scope["method"] == "POST" else {"refresh": str(_RETRY_S)}
    return plain_page(
        "The console does not answer",
        _AWAY if again else _AWAY_AFTER_CHANGE,
        503,
        headers={**error.headers, **again},
    )
