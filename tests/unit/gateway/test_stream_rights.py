"""A stream ends when its token is revoked or changed, or when its session has ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from pathlib import Path

import httpx
import pytest
from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.trace import NoOpTracerProvider
from starlette.types import Receive, Scope, Send

from gangline_gateway import sse
from gangline_gateway.request_checks import Names, RequestChecks
from gangline_service.tokens import Role, TokenBook, TokenEntry, write_tokens

OURS = {"Origin": "http://localhost:8080"}
TOKEN = "gl_of-ada"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
Change = Callable[["Gateway"], object]


class Gateway:
    """The checks around one route: a stream of two events, with a change between them."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.write("nlp")
        self.checks = RequestChecks(
            self._route, Names.of(8080), TokenBook.load(path),
            NoOpMeterProvider().get_meter("t"), NoOpTracerProvider().get_tracer("t"),
        )  # fmt: skip
        self.streams = sse.Streams(1)
        self.change: Change = lambda _: None
        self.cookie = ""

    def write(self, *teams: str, token: str = TOKEN) -> None:
        write_tokens(self._path, [TokenEntry.of(token, name="ada", role=Role.MEMBER, teams=teams)])

    def end_session(self) -> None:
        self.checks._sign_in.sessions.end(self.cookie)

    async def _route(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.streams.response(self._parts(), "ada")(scope, receive, send)

    async def _parts(self) -> AsyncGenerator[str, None]:
        yield "one "
        self.change(self)
        yield "two"

    def read(self, change: Change, *, session: bool = False) -> str:
        self.change = change

        async def ask() -> str:
            async with httpx.AsyncClient(
                transport=httpx.ASGITransport(self.checks), base_url=OURS["Origin"]
            ) as client:
                if session:
                    begun = await client.post("/session", data={"token": TOKEN}, headers=OURS)
                    self.cookie = begun.cookies["gangline-session"]
                return (await client.get("/v1/x", headers={} if session else BEARER)).text

        return asyncio.run(ask()).removeprefix(": stream\n\n")


@pytest.fixture
def gateway(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Gateway:
    monkeypatch.setattr(sse, "CHECK_S", 0.0)
    return Gateway(tmp_path / "tokens.json")


@pytest.mark.parametrize(
    ("change", "session"),
    [
        (lambda gateway: gateway.write("nlp", token="gl_another"), False),
        (lambda gateway: gateway.write("vision"), False),
        (lambda gateway: gateway.write("nlp", token="gl_another"), True),
        (lambda gateway: gateway.end_session(), True),
    ],
    ids=["token revoked", "other teams", "token of a session revoked", "session ended"],
)  # fmt: skip
def test_nothing_is_sent_after_the_rights_have_ended(
    gateway: Gateway,
    change: Change,
    session: bool,
) -> None:
    assert gateway.read(change, session=session) == "one "
    assert gateway.streams.open == 0


@pytest.mark.parametrize("session", [False, True])
def test_a_stream_continues_with_the_same_rights(gateway: Gateway, session: bool) -> None:
    assert gateway.read(lambda gateway: gateway.write("nlp"), session=session) == "one two"
