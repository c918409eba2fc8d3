"""Large bodies are checked while the event loop answers others."""

import asyncio
import json
import threading
from typing import Self

import httpx
import pytest
from fastapi import APIRouter, FastAPI
from pydantic import BaseModel, model_validator

from gangline_gateway import problems
from gangline_gateway.app_context import GatewayRoute
from gangline_gateway.large_bodies import LARGE_BYTES

WAIT_S = 5.0


def app_of(answered: threading.Event) -> FastAPI:
    """A route whose body is valid if another route answers while it is checked."""

    class Body(BaseModel):
        text: str
        number: int

        @model_validator(mode="after")
        def _waits(self) -> Self:
            if not answered.wait(WAIT_S):
                raise ValueError("nothing else was answered")
            return self

    router = APIRouter(route_class=GatewayRoute)

    @router.post("/body")
    async def size(body: Body) -> int:
        return len(body.text) + body.number

    @router.get("/other")
    async def other() -> None:
        answered.set()

    app = FastAPI()
    problems.install(app)
    app.include_router(router)
    return app


def client_of(app: FastAPI) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway")


def test_others_are_answered_while_a_large_body_is_checked() -> None:
    async def story() -> tuple[httpx.Response, httpx.Response]:
        async with client_of(app_of(threading.Event())) as client:
            body = {"text": "x" * LARGE_BYTES, "number": 1}
            sent = asyncio.create_task(client.post("/body", json=body))
            await asyncio.sleep(0)  # it is sent first
            other = await client.get("/other")
            return await sent, other

    sent, other = asyncio.run(story())
    assert (other.status_code, sent.status_code) == (200, 200), sent.text
    assert sent.json() == LARGE_BYTES + 1


@pytest.mark.parametrize(
    "body",
    [
        b'{"text": "%s", "number": "many", "more": {}}',
        b'{"text": "%s"}',
        b'["%s"]',
        b'{"number": none, "text": "%s"}',
        b'{"text": "\xff%s", "number": 1}',
        b"[" * 2000 + b'"%s"',
    ],
)
def test_a_large_body_is_refused_like_a_small_one(body: bytes) -> None:
    answered = threading.Event()
    answered.set()

    async def refused(text: bytes) -> tuple[int, object]:
        async with client_of(app_of(answered)) as client:
            headers = {"content-type": "application/json"}
            answer = await client.post("/body", content=body % text, headers=headers)
            found = json.loads(answer.content)
            return answer.status_code, {**found, "instance": "", "detail": found["detail"][:40]}

    small = asyncio.run(refused(b"x"))
    large = asyncio.run(refused(b"x" * LARGE_BYTES))
    assert large[0] == small[0] >= 400
    assert large == small


@pytest.mark.parametrize("padding", [0, LARGE_BYTES], ids=["small", "large"])
@pytest.mark.parametrize(
    ("text", "status"),
    [
        (b'"\\ud800"', 422),
        (b'"\xed\xa0\x80"', 422),
        (b'"\\ud83d\\ude00"', 200),
        (b'"\\u00e4"', 200),
    ],
)
def test_text_that_is_not_unicode_is_refused(text: bytes, status: int, padding: int) -> None:
    answered = threading.Event()
    answered.set()

    async def story() -> httpx.Response:
        async with client_of(app_of(answered)) as client:
            body = b'{"number":1,"text":' + text + b" " * padding + b"}"
            headers = {"Content-Type": "application/json"}
            return await client.post("/body", content=body, headers=headers)

    answer = asyncio.run(story())
    assert answer.status_code == status
    if status == 422:
        assert "not Unicode" in answer.json()["detail"]
