"""Sessions of browsers: how they begin, what they allow and when they end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import httpx
import pytest
from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.trace import NoOpTracerProvider
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from gangline_gateway.request_checks import Names, RequestChecks
from gangline_gateway.sessions import CODE_S, SESSION_S, SESSIONS, Sessions, _Secrets
from gangline_service.tokens import Role, TokenBook, TokenEntry, write_tokens

HOST = "http://localhost:8080"
OURS = {"Origin": HOST}
TOKEN = "gl_of-ada"


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    answer = PlainTextResponse(scope["state"]["principal"].name)
    await answer(scope, receive, send)


@pytest.fixture
def tokens(tmp_path: Path) -> Callable[..., None]:
    def write(*names: str) -> None:
        entries = [
            TokenEntry.of(f"gl_of-{name}", name=name, role=Role.MEMBER, teams=["nlp"])
            for name in names
        ]
        write_tokens(tmp_path / "tokens.json", entries)

    write("ada")
    return write


class Browser:
    """Asks the checks without a server, and keeps cookies."""

    def __init__(self, folder: Path, scheme: str = "http", *, console: bool = False) -> None:
        names = Names.of(8080, scheme=scheme)
        self.app = RequestChecks(
            echo, names, TokenBook.load(folder / "tokens.json"),
            NoOpMeterProvider().get_meter("t"), NoOpTracerProvider().get_tracer("t"),
            console=console,
        )  # fmt: skip
        self.cookies = httpx.Cookies()
        self.base = f"{scheme}://localhost:8080"

    def __call__(self, method: str, path: str, **more: object) -> httpx.Response:
        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(self.app)
            async with httpx.AsyncClient(
                transport=transport, base_url=self.base, cookies=self.cookies
            ) as client:
                answer = await client.request(method, path, **more)  # type: ignore[arg-type]
                self.cookies = client.cookies
                return answer

        return asyncio.run(ask())


@pytest.fixture
def browser(tokens: Callable[..., None], tmp_path: Path) -> Browser:
    return Browser(tmp_path)


def sign_in(browser: Browser, **form: str) -> httpx.Response:
    return browser("POST", "/session", data={"token": TOKEN, **form}, headers=OURS)


def test_a_token_begins_a_session(browser: Browser) -> None:
    assert browser("GET", "/v1/x").status_code == 401
    page = browser("GET", "/session?next=/mlflow/teams/nlp/")
    assert page.status_code == 200
    assert 'value="/mlflow/teams/nlp/"' in page.text
    begun = sign_in(browser, next="/mlflow/teams/nlp/")
    assert (begun.status_code, begun.headers["location"]) == (303, "/mlflow/teams/nlp/")
    cookie = begun.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert TOKEN not in cookie
    assert browser("GET", "/v1/x").text == "ada"
    assert browser("GET", "/mlflow/").text == "ada"


def test_a_code_works_once(browser: Browser) -> None:
    bearer = {"Authorization": f"Bearer {TOKEN}"}
    code = browser("POST", "/session/codes", headers=bearer).json()["code"]
    form = {"token": "", "code": code}
    assert browser("POST", "/session", data=form, headers=OURS).status_code == 303
    assert browser("GET", "/v1/x").text == "ada"
    again = browser("POST", "/session", data=form, headers=OURS)
    assert again.status_code == 401
    assert "was used" in again.text


@pytest.mark.parametrize("headers", [{}, OURS, {"Authorization": "Bearer wrong"}])
def test_only_a_token_makes_codes(browser: Browser, headers: dict[str, str]) -> None:
    sign_in(browser)
    expected = 403 if not headers else 401
    assert browser("POST", "/session/codes", headers=headers).status_code == expected


@pytest.mark.parametrize(
    "headers",
    [{}, {"Origin": "null"}, {"Origin": "http://evil.example"}, {"Origin": "http://localhost:99"},
     {**OURS, "Sec-Fetch-Site": "same-site"}, {**OURS, "Sec-Fetch-Site": "cross-site"}],
)  # fmt: skip
def test_pages_of_others_change_nothing(browser: Browser, headers: dict[str, str]) -> None:
    form = {"token": TOKEN}
    assert browser("POST", "/session", data=form, headers=headers).status_code == 403
    assert sign_in(browser).status_code == 303
    for method in ("POST", "PUT", "PATCH", "DELETE"):
        assert browser(method, "/v1/x", headers=headers).status_code == 403
        assert browser(method, "/v1/x", headers=OURS).status_code == 200
    assert browser("POST", "/session/end", headers=headers).status_code == 403
    assert browser("GET", "/v1/x").status_code == 200


def test_a_session_ends_with_the_user_s_word(browser: Browser) -> None:
    sign_in(browser)
    kept = httpx.Cookies(browser.cookies)
    assert browser("POST", "/session/end", headers=OURS).status_code == 303
    browser.cookies = kept  # a copy of the cookie
    assert browser("GET", "/v1/x").status_code == 401


def test_a_session_ends_with_its_token(browser: Browser, tokens: Callable[..., None]) -> None:
    sign_in(browser)
    tokens("bob")
    assert browser("GET", "/v1/x").status_code == 401


def test_a_header_counts_before_a_cookie(browser: Browser) -> None:
    sign_in(browser)
    assert browser("GET", "/v1/x", headers={"Authorization": "Bearer no"}).status_code == 401


@pytest.mark.parametrize("token", ["", "gl_unknown", " "])
def test_an_unknown_token_begins_nothing(browser: Browser, token: str) -> None:
    refused = sign_in(browser, token=token)
    assert refused.status_code == 401
    assert "set-cookie" not in refused.headers
    assert "Unknown token" in refused.text


@pytest.mark.parametrize(
    "place", ["//evil.example", "https://evil.example", "/\\evil.example", "", "x", "/a\r\nb: c"]
)
def test_it_leads_to_no_other_host(browser: Browser, place: str) -> None:
    assert sign_in(browser, next=place).headers["location"] == "/mlflow/"


def test_the_form_shows_no_foreign_html(browser: Browser) -> None:
    page = browser("GET", "/session", params={"next": '/"><script>alert(1)</script>'})
    assert "<script>alert" not in page.text
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy


def test_pages_of_mlflow_lead_to_the_form(browser: Browser) -> None:
    html = {"Accept": "text/html,*/*"}
    led = browser("GET", "/mlflow/teams/nlp/?a=1", headers=html)
    assert led.status_code == 303
    assert led.headers["location"] == "/session?next=%2Fmlflow%2Fteams%2Fnlp%2F%3Fa%3D1"
    refused = browser("GET", "/mlflow/teams/nlp/")
    assert refused.status_code == 401
    assert refused.json()["error_code"] == "UNAUTHENTICATED", "MLflow's client shows its message"
    assert refused.json()["message"] == refused.json()["detail"]
    assert browser("GET", "/v1/x", headers=html).status_code == 401
    assert browser("POST", "/mlflow/", headers=html).status_code == 401


HTML = {"Accept": "text/html,*/*"}


def test_pages_of_the_console_lead_to_the_form_and_back(
    tokens: Callable[..., None], tmp_path: Path
) -> None:
    browser = Browser(tmp_path, console=True)
    assert browser("GET", "/", headers=HTML).headers["location"] == "/console/"
    led = browser("GET", "/console/jobs?state=failed", headers=HTML)
    assert led.headers["location"] == "/session?next=%2Fconsole%2Fjobs%3Fstate%3Dfailed"
    assert sign_in(browser).headers["location"] == "/console/"
    assert browser("GET", "/console/jobs", headers=HTML).text == "ada"


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/console/jobs", {"Accept": "*/*"}),
        ("/console/jobs", {**HTML, "HX-Request": "true"}),
        ("/console/jobs", {**HTML, "Sec-Fetch-Mode": "cors"}),
        ("/v1/changes", {"Accept": "text/event-stream"}),
        ("/", {"Accept": "*/*"}),
    ],
)
def test_scripts_without_a_session_get_401_and_no_form(
    tokens: Callable[..., None], tmp_path: Path, path: str, headers: dict[str, str]
) -> None:
    assert Browser(tmp_path, console=True)("GET", path, headers=headers).status_code == 401


def test_without_a_console_nothing_leads_there(browser: Browser) -> None:
    assert browser("GET", "/", headers=HTML).status_code == 401
    assert browser("GET", "/console/", headers=HTML).status_code == 401


def test_with_tls_no_other_host_sets_the_cookie(
    tokens: Callable[..., None], tmp_path: Path
) -> None:
    browser = Browser(tmp_path, "https")
    form = {"token": TOKEN}
    begun = browser("POST", "/session", data=form, headers={"Origin": browser.base})
    cookie = begun.headers["set-cookie"]
    assert cookie.startswith("__Host-gangline=")
    assert "Secure" in cookie
    assert "Domain" not in cookie


def test_sessions_and_codes_have_their_time() -> None:
    now_s = 0.0
    sessions = Sessions(lambda: now_s)
    cookie, code = sessions.begin(TOKEN), sessions.code(TOKEN)
    now_s = CODE_S - 1
    assert sessions.redeem(code) == TOKEN
    code = sessions.code(TOKEN)
    now_s += CODE_S
    assert sessions.redeem(code) is None
    now_s = SESSION_S - 1
    assert sessions.token(cookie) == TOKEN
    now_s = SESSION_S
    assert sessions.token(cookie) is None


def test_sessions_in_a_file_survive_a_restart_and_give_no_token_away(tmp_path: Path) -> None:
    file, now_s = tmp_path / "sessions.json", 0.0
    before = Sessions(lambda: now_s, file)
    cookie, ended = before.begin(TOKEN), before.begin(TOKEN)
    before.end(ended)
    text, written = file.read_text(), file.stat().st_ino
    before.end("guess")
    assert (file.stat().st_mode & 0o777, file.stat().st_ino) == (0o600, written)
    assert not [secret for secret in (TOKEN, TOKEN.encode().hex(), cookie) if secret in text]
    after = Sessions(lambda: now_s, file)
    assert (after.token(cookie), after.token(ended), after.token("guess")) == (TOKEN, None, None)
    first, *_ = [after.begin(TOKEN) for _ in range(SESSIONS)]
    assert (after.token(cookie), after.token(first)) == (None, TOKEN)  # the oldest makes room
    now_s = SESSION_S
    assert Sessions(lambda: now_s, file).token(first) is None
    for broken in ("", "[1]", '{"a": 1}', '{"a": ["b", 1, "no hex"]}'):
        file.write_text(broken)
        assert Sessions(lambda: 0.0, file).token(first) is None


def test_a_token_s_oldest_sessions_make_room_and_no_other_s() -> None:
    sessions = Sessions(lambda: 0.0)
    other, code = sessions.begin("gl_of-bob"), sessions.code("gl_of-bob")
    cookies = [sessions.begin(TOKEN) for _ in range(SESSIONS + 1)]
    assert sessions.token(cookies[0]) is None
    assert sessions.token(cookies[1]) == TOKEN
    for _ in range(20_000):
        sessions.begin(TOKEN)
        sessions.code(TOKEN)
    assert sessions.token(other) == "gl_of-bob"
    assert sessions.redeem(code) == "gl_of-bob"


def test_sessions_whose_time_is_over_take_no_memory() -> None:
    now_s = 0.0
    kept = _Secrets(60.0, 1, lambda: now_s)
    for number in range(100):
        kept.make(f"gl_of-{number}")
        now_s += 10
    assert len(kept) == 6


@pytest.mark.parametrize(
    "before", ['a={"x": 1}', "b=[1 2]", "\xe9=1", "lonely", 'gangline-session-2="', "=;;"]
)
def test_odd_cookies_of_others_on_this_host_hide_no_session(browser: Browser, before: str) -> None:
    sign_in(browser)
    cookie = f"{before}; gangline-session={browser.cookies['gangline-session']}"
    browser.cookies = httpx.Cookies()
    answer = browser("GET", "/v1/x", headers={"Cookie": cookie.encode("latin1")})
    assert answer.text == "ada"


def test_a_long_cookie_of_backslashes_is_read_as_it_is(browser: Browser) -> None:
    # Python's own reader of cookies takes many minutes for it, in the event loop.
    cookie = 'gangline-session="' + "\\" * 500_000 + '"'
    assert browser("GET", "/v1/x", headers={"Cookie": cookie}).status_code == 401


async def _pieces() -> AsyncIterator[bytes]:
    for _ in range(20):
        yield b"a" * 1024


@pytest.mark.parametrize(
    ("body", "status"), [(b"&".join([b"a=1"] * 11), 400), (_pieces, 413)], ids=["fields", "size"]
)
def test_a_form_that_cannot_be_read_is_refused(
    browser: Browser, body: bytes | Callable[[], AsyncIterator[bytes]], status: int
) -> None:
    content = body if isinstance(body, bytes) else body()
    assert browser("POST", "/session", content=content, headers=OURS).status_code == status
