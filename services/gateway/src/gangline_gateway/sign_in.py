"""/session: a browser shows a token or a one-time code, and gets the cookie of a session.

- `GET /session`: the form. A code after `#` in the address is sent at once; servers, logs and
  other pages never see that part of an address.
- `POST /session`: begins a session and goes to the page `next` of this gateway, or home.
- `POST /session/end`: ends it.
- `POST /session/codes`, with `Authorization: Bearer TOKEN`: a code for `gangline open`.
- With a provider (oidc/flows.py) also `/session/provider`, `/session/callback`, `/session/device`.

The cookie is HttpOnly and SameSite=Strict. Cookies know no ports, so other servers of the same
host count as the same site: `RequestChecks` also wants an Origin of ours for each change.
"""

from __future__ import annotations

import html
from contextlib import suppress
from dataclasses import dataclass, field
from urllib.parse import parse_qs, quote, urlsplit

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import Receive, Scope, Send

from gangline_gateway import audit
from gangline_gateway.identities import Identities
from gangline_gateway.oidc import flows
from gangline_gateway.oidc.flows import Flows, SignedIn
from gangline_gateway.plain_page import plain_headers, plain_page
from gangline_gateway.problems import ProblemError
from gangline_gateway.sessions import CODE_S, SESSION_S, Sessions

PATH = "/session"
BEGIN, END = "session.begin", "session.end"
"""Their words in the audit log."""
_CODES, _END = f"{PATH}/codes", f"{PATH}/end"
_SCRIPT = """
const code = location.hash.slice(1), form = document.querySelector("form");
history.replaceState(null, "", location.pathname + location.search);
if (code) { form.code.value = code; form.token.required = false; form.submit(); }
"""
_PROVIDER = """<p><a class="button" href="{path}?next={next}">Sign in with {host}</a></p>
<p>Or with a token:</p>"""
_FORM = """{note}{provider}<form method="post" action="{path}">
<input type="hidden" name="code"><input type="hidden" name="next" value="{next}">
<label>Token <input name="token" type="password" autocomplete="current-password" required autofocus>
</label><button>Sign in</button></form>
<p>Or run <code>gangline open</code> on the machine where you submit jobs. It needs no token
here.</p>"""


@dataclass
class SignIn:
    """The ASGI application of /session, and the reader of its cookie."""

    who: Identities
    scheme: str
    home: str
    """The page after a sign-in that named none."""
    sessions: Sessions = field(default_factory=Sessions)

    def __post_init__(self) -> None:
        logins = self.who.logins
        self._flows = Flows(logins, self.scheme) if logins is not None else None

    @property
    def cookie_name(self) -> str:
        """With TLS, browsers let no other host set a cookie of this name."""
        return "__Host-gangline" if self.scheme == "https" else "gangline-session"

    def token(self, headers: Headers) -> str | None:
        """The token of a request's session."""
        found = cookie_of(headers, self.cookie_name)
        return None if found is None else self.sessions.token(found)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request whose host and origin are checked. Raises ProblemError."""
        request = Request(scope, receive)
        wanted = (request.method, request.url.path)
        if wanted in {("GET", PATH), ("HEAD", PATH)}:
            answer: Response = self._page(request.query_params.get("next", ""))
        elif wanted == ("POST", PATH):
            answer = await self._begun(await _form(request))
        elif wanted == ("POST", _END):
            answer = await self._ended(request.headers)
        elif wanted == ("POST", _CODES):
            answer = await self._code(request.headers)
        elif (flow := self._flows) and (found := await self._at_provider(flow, request)):
            answer = found
        elif request.url.path == flows.DEVICE:
            raise ProblemError(404, "no-provider", "this installation has no sign-in provider")
        else:
            raise ProblemError(404, "no-such-route", "there is no such route below /session")
        await answer(scope, receive, send)

    async def _begun(self, form: dict[str, str]) -> Response:
        token = form.get("token", "").strip()
        if code := form.get("code", ""):
            token = self.sessions.redeem(code) or ""
        audit.note().action = BEGIN
        principal = await self.who.authenticate(token) if token else None
        if principal is None:
            wrong = "This code was used, or is older than a minute." if code else "Unknown token."
            return self._page(form.get("next", ""), wrong)
        audit.note().user = principal.name
        answer = RedirectResponse(
            _local(form.get("next", ""), self.home), 303, headers=plain_headers()
        )
        return self._with_session(answer, token)

    async def _at_provider(self, flow: Flows, request: Request) -> Response | None:
        """The answer of a step of a sign-in at the provider; None: it is none."""
        wanted = request.method, request.url.path
        if wanted == ("GET", flows.START):
            place = _local(request.query_params.get("next", ""), self.home)
            return await flow.start(request, place)
        if wanted == ("POST", flows.DEVICE):
            return await flow.begin_device()
        if wanted not in {("GET", flows.CALLBACK), ("POST", flows.DEVICE_TOKEN)}:
            return None
        page, note = request.method == "GET", audit.note()
        note.action, note.via = BEGIN, "sign-in"
        if page:
            done = await flow.finish(request, cookie_of(request.headers, flow.cookie_name))
        else:
            done = await flow.poll_device((await _form(request)).get("handle", ""))
        if not isinstance(done, SignedIn):
            note.ignored = not page  # the person has not typed the code yet
            return done
        note.user = done.principal.name
        if page:
            return self._with_session(flows.onward(done.next), done.token)
        return flows.token_answer(done, flow.logins.provider.settings.session_hours * 3600)

    def _with_session(self, answer: Response, token: str) -> Response:
        answer.set_cookie(
            self.cookie_name, self.sessions.begin(token), max_age=int(SESSION_S), path="/",
            secure=self.scheme == "https", httponly=True, samesite="strict",
        )  # fmt: skip
        return answer

    async def _ended(self, headers: Headers) -> Response:
        found = cookie_of(headers, self.cookie_name)
        token = self.sessions.token(found) if found else _bearer(headers)
        if token:
            with suppress(ProblemError):  # the provider is away: it ends here all the same
                principal = await self.who.authenticate(token)
                if principal is not None:
                    audit.note().action, audit.note().user = END, principal.name
            if self.who.logins is not None:
                await self.who.logins.end(token)
        if found:
            self.sessions.end(found)
        answer = RedirectResponse(PATH, 303, headers=plain_headers())
        answer.delete_cookie(
            self.cookie_name, path="/", secure=self.scheme == "https", httponly=True,
            samesite="strict",
        )  # fmt: skip
        return answer

    async def _code(self, headers: Headers) -> Response:
        token = _bearer(headers)
        if not token or await self.who.authenticate(token) is None:
            raise ProblemError(
                401, "no-token", "give a token of this installation: Authorization: Bearer TOKEN",
                headers={"WWW-Authenticate": 'Bearer realm="gangline"'},
            )  # fmt: skip
        made = {"code": self.sessions.code(token), "expires_s": int(CODE_S)}
        return JSONResponse(made, headers={"cache-control": "no-store"})

    def _page(self, wanted: str, wrong: str = "") -> Response:
        note = f'<p class="bad" role="alert">{html.escape(wrong)}</p>' if wrong else ""
        place = _local(wanted, self.home)
        form = _FORM.format(
            path=PATH, note=note, next=html.escape(place), provider=self._provider_link(place)
        )
        return plain_page("Sign in to Gangline", form, 401 if wrong else 200, script=_SCRIPT)

    def _provider_link(self, wanted: str) -> str:
        if self._flows is None:
            return ""
        issuer = self._flows.logins.provider.settings.issuer
        host = html.escape(urlsplit(issuer).hostname or issuer)
        return _PROVIDER.format(path=flows.START, next=quote(wanted, safe=""), host=host)


def cookie_of(headers: Headers, name: str) -> str | None:
    """The value of a cookie.

    Not http.cookies: it needs seconds for some headers, and one odd cookie hides all others.
    """
    for cookie in headers.get("cookie", "").split(";"):
        given, _, value = cookie.partition("=")
        if given.strip() == name:
            return value.strip()
    return None


def _bearer(headers: Headers) -> str:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def is_session(path: str) -> bool:
    """Whether a path is one of these routes."""
    return path == PATH or path.startswith(f"{PATH}/")


def sign_in_at(path: str, query: str) -> str:
    """The address of the form for a page that needs a session."""
    return f"{PATH}?next={quote(path + ('?' + query if query else ''), safe='')}"


async def _form(request: Request) -> dict[str, str]:
    try:
        body = await request.body()
    except HTTPException as error:  # no application of FastAPI is around this one
        raise ProblemError(error.status_code, "bad-body", str(error.detail)) from None
    try:
        found = parse_qs(body.decode("utf-8", "replace"), max_num_fields=10)
    except ValueError:
        raise ProblemError(400, "malformed", "the form has too many fields") from None
    return {name: values[0] for name, values in found.items()}


def _local(wanted: str, otherwise: str) -> str:
    """A page of this gateway; for browsers, two slashes or backslashes begin another host."""
    plain = wanted.isascii() and wanted.isprintable() and "\\" not in wanted
    return wanted if plain and wanted.startswith("/") and wanted[1:2] != "/" else otherwise
