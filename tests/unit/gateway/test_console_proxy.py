"""What the gateway hands on to the console, and what it answers when the console is away."""

from __future__ import annotations

import re
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from unittest.mock import patch

import httpx
import pytest
from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.trace import NoOpTracerProvider
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send
from structlog.testing import capture_logs

from gangline_console.pages import PAGES
from gangline_gateway import request_checks
from gangline_gateway.console_proxy import ConsoleProxy, is_console
from gangline_gateway.request_checks import Names, RequestChecks
from gangline_service.http_server import HttpServer
from gangline_service.tokens import Role, TokenBook, TokenEntry, write_tokens
from support.builders.hostile_paths import leaving
from support.waiting import until

ADA, BOB = "gl_of-ada", "gl_of-bob"
HTML = {"Accept": "text/html,*/*;q=0.8"}


async def console(scope: Scope, receive: Receive, send: Send) -> None:
    """Says what it got."""
    request = Request(scope, receive)
    if scope["path"] == "/console/half":
        length = [(b"content-length", b"100")]
        await send({"type": "http.response.start", "status": 200, "headers": length})
        await send({"type": "http.response.body", "body": b"half", "more_body": True})
        raise ConnectionResetError
    if scope["path"] == "/console/moved":
        answer: Response = PlainTextResponse("", 303, {"Location": "/console/jobs"})
    else:
        got = {
            "method": request.method,
            "raw": scope["raw_path"].decode(),
            "query": scope["query_string"].decode(),
            "headers": dict(request.headers),
            "body": (await request.body()).decode(),
        }
        answer = JSONResponse(got)
    answer.set_cookie("gangline-session", "of the console")
    await answer(scope, receive, send)


class Gateway:
    """The checks and the proxy behind a real server, with or without a console."""

    def __init__(self, folder: Path, console_url: str) -> None:
        entries = [
            TokenEntry.of(token, name=token[6:], role=Role.MEMBER, teams=[team])
            for token, team in ((ADA, "nlp"), (BOB, "vision"))
        ]
        write_tokens(folder / "tokens.json", entries)
        self.server = HttpServer("127.0.0.1", 0)
        proxy = ConsoleProxy(console_url)

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            own: ASGIApp = PlainTextResponse("the gateway's own")
            await (proxy if is_console(scope["path"]) else own)(scope, receive, send)
            if scope["path"] == "/end":
                await proxy.close()

        checks = RequestChecks(
            app, Names.of(self.server.port), TokenBook.load(folder / "tokens.json"),
            NoOpMeterProvider().get_meter("t"), NoOpTracerProvider().get_tracer("t"),
            console=True,
        )  # fmt: skip
        self.server.start(checks)
        self.url = f"http://127.0.0.1:{self.server.port}"
        self.client = httpx.Client(base_url=self.url, trust_env=False, timeout=60)

    def ask(self, method: str, path: str, token: str | None = ADA, **more: Any) -> httpx.Response:
        headers = more.pop("headers", {})
        if token is not None:
            headers = {"Authorization": f"Bearer {token}", **headers}
        return self.client.request(method, path, headers=headers, **more)

    def sign_in(self) -> None:
        origin = {"Origin": self.url}
        assert self.client.post("/session", data={"token": ADA}, headers=origin).is_redirect

    def close(self) -> None:
        self.ask("GET", "/end")
        self.client.close()
        self.server.close()


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    behind = HttpServer("127.0.0.1", 0)
    behind.start(console)
    found = Gateway(tmp_path_factory.mktemp("gateway"), f"http://127.0.0.1:{behind.port}")
    yield found
    found.close()
    behind.close()


@pytest.fixture
def signed_in(gateway: Gateway) -> Iterator[Gateway]:
    gateway.sign_in()
    yield gateway
    gateway.client.cookies.clear()


@pytest.fixture(scope="module")
def away(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    found = Gateway(tmp_path_factory.mktemp("away"), "http://127.0.0.1:9")
    yield found
    found.close()


def test_the_console_gets_the_request_with_the_token_of_its_caller(gateway: Gateway) -> None:
    answer = gateway.ask("GET", "/console/jobs/a.b-1?state=failed&q=..%2F", BOB)
    got = answer.json()
    assert (got["raw"], got["query"]) == ("/console/jobs/a.b-1", "state=failed&q=..%2F")
    assert got["headers"]["authorization"] == f"Bearer {BOB}"


def test_a_session_stands_for_its_token(signed_in: Gateway) -> None:
    got = signed_in.ask("GET", "/console/", None).json()
    assert got["headers"]["authorization"] == f"Bearer {ADA}"
    assert "cookie" not in got["headers"]


def test_headers_that_the_gateway_checks_or_sets_are_not_handed_on(gateway: Gateway) -> None:
    sent = {
        "Cookie": "a=b", "Forwarded": "for=1.2.3.4", "X-Forwarded-For": "1.2.3.4",
        "X-Forwarded-User": "root", "X-Real-IP": "1.2.3.4", "Origin": gateway.url,
        "HX-Request": "true",
    }  # fmt: skip
    got = gateway.ask("GET", "/console/jobs", headers=sent).json()["headers"]
    assert not {name.lower() for name in sent if name != "HX-Request"} & set(got)
    assert got["hx-request"] == "true"


def test_the_console_sets_no_cookie_and_its_redirects_reach_the_browser(gateway: Gateway) -> None:
    moved = gateway.ask("GET", "/console/moved")
    assert (moved.status_code, moved.headers["location"]) == (303, "/console/jobs")
    assert "set-cookie" not in moved.headers
    assert moved.headers.get_list("x-content-type-options") == ["nosniff"]


def test_the_console_without_a_slash_is_its_first_page(gateway: Gateway) -> None:
    assert gateway.ask("GET", "/console").headers["location"].endswith("/console/")


def test_forms_need_an_origin_in_a_session(signed_in: Gateway) -> None:
    form = {"csrf": "c", "reason": "ended"}
    own = {"Origin": signed_in.url}
    sent = signed_in.ask("POST", "/console/jobs/j-1/cancel", None, data=form, headers=own)
    assert (sent.json()["method"], sent.json()["body"]) == ("POST", "csrf=c&reason=ended")
    for headers in ({}, {"Origin": "http://evil.example"}, {**own, "Sec-Fetch-Site": "same-site"}):
        refused = signed_in.ask("POST", "/console/jobs/j-1/cancel", None, headers=headers)
        assert refused.status_code == 403


def test_no_form_of_any_page_is_taken_from_another_origin_or_host(signed_in: Gateway) -> None:
    for path in sorted({path for page in PAGES for path in page.post}):
        form = f"/console{re.sub('{[^}]+}', 'a', path)}"
        for headers, status in (
            ({"Origin": "http://evil.example"}, {403}),
            ({"Origin": "null"}, {403}),
            ({"Origin": signed_in.url, "Host": "evil.example"}, {400, 421}),
        ):
            refused = signed_in.ask("POST", form, None, data={"csrf": "c"}, headers=headers)
            assert refused.status_code in status, (form, headers)


@pytest.mark.parametrize("method", ["PUT", "PATCH", "DELETE", "OPTIONS"])
def test_other_methods_are_refused(gateway: Gateway, method: str) -> None:
    assert gateway.ask(method, "/console/jobs").status_code == 405


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1", ""])
def test_another_host_is_refused(gateway: Gateway, host: str) -> None:
    assert gateway.ask("GET", "/console/", headers={"Host": host}).status_code in {400, 421}


@pytest.mark.parametrize("token", [None, "gl_unknown"])
def test_without_a_token_nothing_is_handed_on(gateway: Gateway, token: str | None) -> None:
    refused = gateway.ask("GET", "/console/jobs", token)
    assert refused.status_code == 401
    assert refused.json()["type"] == "urn:gangline:problem:no-token"


def test_a_body_that_is_too_large_is_refused(gateway: Gateway) -> None:
    assert gateway.ask("POST", "/console/submit", content=b"a" * (1 << 20)).status_code == 200
    assert gateway.ask("POST", "/console/submit", content=b"a" * ((1 << 20) + 1)).status_code == 413


def hostile() -> list[str]:
    left = [path for path in leaving("v1/whoami") if path != "x/v1/whoami"]
    odd = ["/v1", "/", "x//y", "x%2fv1", "x%5cv1", "%00", "%0a", "%7f", "%ff", "#x", "?#x", "j%31"]
    return [f"/console/{path}" for path in left + odd]


@pytest.mark.parametrize("path", hostile())
def test_a_path_that_programs_may_read_differently_is_refused(gateway: Gateway, path: str) -> None:
    # Not httpx, which would tidy the path.
    connection = HTTPConnection("127.0.0.1", gateway.server.port)
    connection.request("GET", path, headers={"Authorization": f"Bearer {ADA}"})
    assert connection.getresponse().status == 400
    connection.close()


def test_when_the_console_is_away_browsers_get_a_page_that_tries_again(away: Gateway) -> None:
    page = away.ask("GET", "/console/jobs", headers=HTML)
    assert (page.status_code, page.headers["refresh"]) == (503, "2")
    assert page.headers["retry-after"] == "2"
    assert "does not answer" in page.text
    assert "gangline list" in page.text
    assert "script" not in page.text
    after = away.ask("POST", "/console/jobs/j-1/cancel", headers=HTML, data={"a": "b"})
    assert "refresh" not in after.headers
    assert "unknown whether your change was made" in after.text


@pytest.mark.parametrize("headers", [{"Accept": "*/*"}, {**HTML, "HX-Request": "true"}])
def test_when_the_console_is_away_scripts_get_a_problem(
    away: Gateway, headers: dict[str, str]
) -> None:
    refused = away.ask("GET", "/console/jobs", headers=headers)
    assert refused.status_code == 503
    assert refused.json()["type"] == "urn:gangline:problem:no-console"


def test_a_console_that_ends_while_it_answers_is_away(gateway: Gateway) -> None:
    refused = gateway.ask("GET", "/console/half", headers={"Accept": "*/*"})
    assert refused.status_code == 503
    assert refused.json()["type"] == "urn:gangline:problem:no-console"


def test_requests_are_logged_under_one_route_and_without_tokens(
    gateway: Gateway, away: Gateway
) -> None:
    with capture_logs() as lines, patch.object(request_checks, "log", request_checks.log.new()):
        gateway.ask("GET", "/console/jobs/j-1?token=abc", BOB)
        away.ask("GET", "/console/jobs/j-1?token=abc", BOB)
        until(lambda: [line.get("user") for line in lines].count("bob") == 2)  # after the answers
    assert {line["route"] for line in lines if line["event"] == "request"} == {"/console/..."}
    text = repr(lines)
    assert BOB not in text
    assert "abc" not in text
    assert "bob" in text
