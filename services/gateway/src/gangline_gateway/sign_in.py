"""/session: a browser shows a token or a one-time code, and gets the cookie of a session.

- `GET /session`: the form. A code after `#` in the address is sent at once; servers, logs and
  other pages never see that part of an address.
- `POST /session`: begins a session and goes to the page `next` of this gateway, or home.
- `POST /session/end`: ends it.
- `POST /session/codes`, with `Authorization: Bearer TOKEN`: a code for `gangline open`.

The cookie is HttpOnly and SameSite=Strict. Cookies know no ports, so other servers of the same
host count as the same site: `RequestChecks` also wants an Origin of ours for each change.
"""

from __future__ import annotations

import html
from dataclasses import dataclass, field
from urllib.parse import parse_qs, quote

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import Receive, Scope, Send

from gangline_gateway.plain_page import plain_headers, plain_page
from gangline_gateway.problems import ProblemError
from gangline_gateway.sessions import CODE_S, SESSION_S, Sessions
from gangline_service.tokens import TokenBook

PATH = "/session"
_CODES, _END = f"{PATH}/codes", f"{PATH}/end"
_SCRIPT = """
const code = location.hash.slice(1), form = document.querySelector("form");
history.replaceState(null, "", location.pathname + location.search);
if (code) { form.code.value = code; form.token.required = false; form.submit(); }
"""
_FORM = """{note}<form method="post" action="{path}">
<input type="hidden" name="code"><input type="hidden" name="next" value="{next}">
<label>Token <input name="token" type="password" autocomplete="current-password" required autofocus>
</label><button>Sign in</button></form>
<p>Or run <code>gangline open</code> on the machine where you submit jobs. It needs no token
here.</p>"""


@dataclass
class SignIn:
    """The ASGI application of /session, and the reader of its cookie."""

    tokens: TokenBook
    scheme: str
    home: str
    """The page after a sign-in that named none."""
    sessions: Sessions = field(default_factory=Sessions)

    @property
    def cookie_name(self) -> str:
        """With TLS, browsers let no other host set a cookie of this name."""
        return "__Host-gangline" if self.scheme == "https" else "gangline-session"

    def token(self, headers: Headers) -> str | None:
        """The token of a request's session."""
        found = self._cookie(headers)
        return None if found is None else self.sessions.token(found)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request whose host and origin are checked. Raises ProblemError."""
        request = Request(scope, receive)
        wanted = (request.method, request.url.path)
        if wanted in {("GET", PATH), ("HEAD", PATH)}:
            answer: Response = self._page(request.query_params.get("next", ""))
        elif wanted == ("POST", PATH):
            answer = self._begun(_form(await _body(request)))
        elif wanted == ("POST", _END):
            answer = self._ended(request.headers)
        elif wanted == ("POST", _CODES):
            answer = self._code(request.headers)
        else:
            raise ProblemError(404, "no-such-route", "there is no such route below /session")
        await answer(scope, receive, send)

    def _begun(self, form: dict[str, str]) -> Response:
        token = form.get("token", "").strip()
        if code := form.get("code", ""):
            token = self.sessions.redeem(code) or ""
        if not token or self.tokens.authenticate(token) is None:
            wrong = "This code was used, or is older than a minute." if code else "Unknown token."
            return self._page(form.get("next", ""), wrong)
        answer = RedirectResponse(
            _local(form.get("next", ""), self.home), 303, headers=plain_headers()
        )
        answer.set_cookie(
            self.cookie_name, self.sessions.begin(token), max_age=int(SESSION_S), path="/",
            secure=self.scheme == "https", httponly=True, samesite="strict",
        )  # fmt: skip
        return answer

    def _ended(self, headers: Headers) -> Response:
        if found := self._cookie(headers):
            self.sessions.end(found)
        answer = RedirectResponse(PATH, 303, headers=plain_headers())
        answer.delete_cookie(
            self.cookie_name, path="/", secure=self.scheme == "https", httponly=True,
            samesite="strict",
        )  # fmt: skip
        return answer

    def _code(self, headers: Headers) -> Response:
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or self.tokens.authenticate(token.strip()) is None:
            raise ProblemError(
                401, "no-token", "give a token of this installation: Authorization: Bearer TOKEN",
                headers={"WWW-Authenticate": 'Bearer realm="gangline"'},
            )  # fmt: skip
        made = {"code": self.sessions.code(token.strip()), "expires_s": int(CODE_S)}
        return JSONResponse(made, headers={"cache-control": "no-store"})

    def _page(self, wanted: str, wrong: str = "") -> Response:
        note = f'<p class="bad" role="alert">{html.escape(wrong)}</p>' if wrong else ""
        form = _FORM.format(path=PATH, note=note, next=html.escape(_local(wanted, self.home)))
        return plain_page("Sign in to Gangline", form, 401 if wrong else 200, script=_SCRIPT)

    def _cookie(self, headers: Headers) -> str | None:
        # Not http.cookies: it needs seconds for some headers, and one odd cookie hides all others.
        for cookie in headers.get("cookie", "").split(";"):
            name, _, value = cookie.partition("=")
            if name.strip() == self.cookie_name:
                return value.strip()
        return None


def is_session(path: str) -> bool:
    """Whether a path is one of these routes."""
    return path == PATH or path.startswith(f"{PATH}/")


def sign_in_at(path: str, query: str) -> str:
    """The address of the form for a page that needs a session."""
    return f"{PATH}?next={quote(path + ('?' + query if query else ''), safe='')}"


async def _body(request: Request) -> bytes:
    try:
        return await request.body()
    except HTTPException as error:  # no application of FastAPI is around this one
        raise ProblemError(error.status_code, "bad-body", str(error.detail)) from None


def _form(body: bytes) -> dict[str, str]:
    try:
        found = parse_qs(body.decode("utf-8", "replace"), max_num_fields=10)
    except ValueError:
        raise ProblemError(400, "malformed", "the form has too many fields") from None
    return {name: values[0] for name, values in found.items()}


def _local(wanted: str, otherwise: str) -> str:
    """A page of this gateway; for browsers, two slashes or backslashes begin another host."""
    plain = wanted.isascii() and wanted.isprintable() and "\\" not in wanted
    return wanted if plain and wanted.startswith("/") and wanted[1:2] != "/" else otherwise
