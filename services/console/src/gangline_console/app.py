"""The application: one wrapper around each page's handler, error pages, security headers.

For each request: the bearer token names the user; a POST's form must have its CSRF token; the
handler's answer, or the error page, gets the headers below. The gateway has checked Host and
Origin, the session and its rate before.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import cache
from typing import Any

import structlog
from jinja2 import Environment
from starlette.applications import Starlette
from starlette.datastructures import URL
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gangline_console.assets import Assets
from gangline_console.client import ApiError, Gateway, GatewayAwayError
from gangline_console.forms import Csrf, Form, FormError, read_form
from gangline_console.page import PREFIX, Handler, Page, View
from gangline_console.pages import PAGES
from gangline_console.render import environment

log = structlog.get_logger(__name__)

HOME = f"{PREFIX}/overview"
CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
_HEADERS = (
    (b"content-security-policy", CSP.encode()),
    (b"referrer-policy", b"same-origin"),
    (b"x-content-type-options", b"nosniff"),
    (b"cross-origin-opener-policy", b"same-origin"),
)
_AGAIN_S = 5
_TITLES = {
    400: "This request cannot be read",
    401: "Sign in to see this page",
    403: "You may not do this",
    404: "There is no such page",
    409: "This is not possible now",
    413: "This is too large",
    415: "This is no form",
    422: "Something here is not right",
    429: "Too many requests",
    500: "The console has an error",
    503: "This cannot be read now",
}
_ADVICE = {
    401: "Sign in again: your session has ended, or your token was revoked.",
    403: "Ask an admin for a token of this team, or go back.",
    404: "It may have been removed, or belongs to another team. Check the address, or search.",
    409: "Load the page again to see how it stands now.",
    422: "Go back and correct it.",
    429: "Wait some seconds, then load the page again.",
    500: "Load the page again. If it stays, an operator finds the error in the console's log.",
    503: "Training is not affected. This page tries again every 5 seconds.",
}

_ADVICE_POST = {
    409: "Go back to see how it stands now.",
    429: "Wait some seconds, then go back and send it again.",
    500: "Go back and look whether it was done. An operator finds the error in the console's log.",
    503: "Training is not affected. Go back and look whether it was done, then try again.",
}
"""After a form: its page cannot be loaded again, so nothing is sent twice."""


@dataclass(frozen=True)
class _Console:
    gateway: Gateway
    csrf: Csrf
    environment: Environment
    pages: tuple[Page, ...]

    def endpoint(
        self, page: Page, handler: Handler
    ) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """A handler as a route's endpoint; its errors become pages."""

        async def answer(request: Request) -> Response:
            view: View | None = None
            try:
                view = await self._view(request, page)
                return await handler(view)
            except ApiError as error:
                lines = [str(item) for item in _lines(error)]
                return self.error(request, error.status, error.detail, view, lines)
            except FormError as error:
                return self.error(request, error.status, error.detail, view)
            except GatewayAwayError as error:
                return self.error(request, 503, str(error), view)
            except Exception:
                log.exception("page failed", page=page.name)
                return self.error(request, 500, "", view)

        return answer

    async def _view(self, request: Request, page: Page) -> View:
        token = _token(request)
        if not token:
            raise FormError(401, "this request has no token")
        form = Form({})
        if request.method == "POST":
            form = await read_form(request, self.csrf, token)
        return View(
            request=request,
            page=page,
            api=self.gateway.api(token),
            who=await self.gateway.who(token),
            csrf=self.csrf.token(token),
            environment=self.environment,
            navigation=tuple(item for item in self.pages if item.nav),
            form=form,
        )

    def error(
        self,
        request: Request,
        status: int,
        detail: str,
        view: View | None = None,
        lines: list[str] | None = None,
    ) -> Response:
        """A page that says what is wrong and what to do."""
        posted = request.method == "POST"
        advice = _ADVICE | (_ADVICE_POST if posted else {})
        values = {
            "code": status,
            "title": _TITLES.get(status, "This did not work"),
            "detail": detail,
            "lines": lines or [],
            "advice": advice.get(status, "Go back, or load the page again."),
        }
        if view is not None:
            again = _page_before(view) if posted else _address(request.url)
            answer = view.render("error.html", status, again=again, posted=posted, **values)
        else:
            bare = self.environment.get_template("bare_error.html")
            answer = HTMLResponse(bare.render(prefix=PREFIX, **values), status)
        if status == 503 and not posted:
            answer.headers["refresh"] = str(_AGAIN_S)
        return answer


@cache
def _installed() -> tuple[Assets, Environment]:
    """The package's files and templates, which a process reads and compiles once."""
    assets = Assets.load()
    return assets, environment(assets)


def create_app(gateway: Gateway, secret: str, pages: tuple[Page, ...] = PAGES) -> ASGIApp:
    """The console over one gateway; `secret` makes the CSRF tokens."""
    assets, templates = _installed()
    console = _Console(gateway, Csrf.of(secret), templates, pages)
    routes = [
        Route(f"{PREFIX}/static/{{version}}/{{name:path}}", assets.serve, methods=["GET"]),
        Route(PREFIX, _home, methods=["GET"]),
        Route(f"{PREFIX}/", _home, methods=["GET"]),
    ]
    for page in pages:
        for method, handlers in (("GET", page.get), ("POST", page.post)):
            routes += [
                Route(f"{PREFIX}{path}", console.endpoint(page, handler), methods=[method])
                for path, handler in handlers.items()
            ]
    lost = Page("lost", "Not found", {})
    routes.append(
        Route("/{path:path}", console.endpoint(lost, _not_found), methods=["GET", "POST"])
    )
    app = Starlette(routes=routes)
    return _Secured(GZipMiddleware(app, minimum_size=1000, compresslevel=5))


@dataclass(frozen=True)
class _Secured:
    """Adds the security headers, and keeps pages out of caches."""

    app: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def secured(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = message.setdefault("headers", [])
                headers.extend(_HEADERS)
                if not any(name == b"cache-control" for name, _ in headers):
                    headers.append((b"cache-control", b"no-store"))
            await send(message)

        await self.app(scope, receive, secured)


async def _home(_: Request) -> Response:
    return RedirectResponse(HOME, 303)


async def _not_found(_: View) -> Response:
    raise FormError(404, "there is nothing at this address")


def _address(url: URL) -> str:
    """The path and query of an address of the console."""
    return f"{url.path}{'?' if url.query else ''}{url.query}"


def _page_before(view: View) -> str:
    """The page with the form that was sent, else the first one of its kind."""
    try:
        before = _address(URL(view.request.headers.get("referer", "")))
    except ValueError:
        before = ""
    return before if before.startswith(f"{PREFIX}/") else f"{PREFIX}{view.page.nav or '/'}"


def _token(request: Request) -> str:
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def _lines(error: ApiError) -> list[str]:
    return [f"{item.field}: {item.message}" for item in error.errors]
