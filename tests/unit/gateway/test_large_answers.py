"""Large answers become JSON while the event loop answers others."""

from __future__ import annotations

import asyncio
import gzip
import json
import math
import threading
from typing import Annotated, Any

import httpx
import pytest
from fastapi import APIRouter, FastAPI, Query
from pydantic import BaseModel, model_serializer

from gangline_gateway.app_context import GatewayRoute
from gangline_gateway.large_answer import json_of

WAIT_S = 5.0
MANY = 12_000


class Part(BaseModel):
    name: str
    value: float | None = None


class Group(BaseModel):
    """A list within an item of a list."""

    key: str
    parts: list[Part]
    words: tuple[str, ...] = ()


class Page(BaseModel):
    first: int
    groups: list[Group]
    by_name: dict[str, Part] = {}
    cursor: str | None = None


class Slow(BaseModel):
    """An item whose first becomes JSON only after another route has answered."""

    number: int

    @model_serializer
    def _waits(self) -> dict[str, Any]:
        BEGAN.set()
        return {"number": self.number, "seen": self.number > 0 or ANSWERED.wait(WAIT_S)}


class Slows(BaseModel):
    items: list[Slow]


BEGAN, ANSWERED = threading.Event(), threading.Event()


def app_of() -> FastAPI:
    """Lists from both kinds of endpoints, and another route that lets their items go."""
    router = APIRouter(route_class=GatewayRoute)

    @router.get("/plain", status_code=202)
    def plain(many: Annotated[int, Query()] = 200) -> Slows:
        return Slows(items=[Slow(number=each) for each in range(many)])

    @router.get("/coroutine", status_code=202)
    async def coroutine() -> Slows:
        return Slows(items=[Slow(number=each) for each in range(200)])

    @router.get("/other")
    async def other() -> None:
        ANSWERED.set()

    app = FastAPI()
    app.include_router(router)
    return app


@pytest.mark.parametrize("path", ["/plain", "/plain?many=1", "/coroutine"])
def test_others_are_answered_while_a_large_answer_becomes_json(path: str) -> None:
    async def story() -> httpx.Response:
        transport = httpx.ASGITransport(app_of())
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
            asked = asyncio.create_task(client.get(path))
            await asyncio.to_thread(BEGAN.wait, WAIT_S)
            await client.get("/other")
            return await asked

    BEGAN.clear()
    ANSWERED.clear()
    answer = asyncio.run(story())
    assert answer.status_code == 202
    assert {each["seen"] for each in answer.json()["items"]} == {True}


def test_no_step_of_a_long_answer_holds_the_interpreter_for_more_than_100_items(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Pydantic lets no other thread run within one call."""
    sizes: list[int] = []
    plain = BaseModel.model_dump_json

    def noted(model: BaseModel, **settings: Any) -> str:
        text = plain(model, **settings)
        sizes.append(len(text))
        return text

    monkeypatch.setattr(BaseModel, "model_dump_json", noted)
    long = Group(key="long", parts=[Part(name=f"p{each}") for each in range(MANY)])
    text = json_of(Page(first=1, groups=[long, long]))
    assert len(text) > MANY * len(long.parts[0].model_dump_json())
    assert max(sizes) <= 200 * len(long.parts[-1].model_dump_json())


@pytest.mark.parametrize(
    "page",
    [
        Page(first=0, groups=[]),
        Page(first=1, groups=[Group(key='"', parts=[])], cursor="é"),
        Page(
            first=2,
            groups=[
                Group(key="a", parts=[Part(name=str(each)) for each in range(250)], words=("x",)),
                Group(key="b", parts=[Part(name="nan", value=math.nan), Part(name="\ud7ff\\")]),
            ],
            by_name={"one": Part(name="inf", value=math.inf)},
        ),
        Page(first=3, groups=[Group(key=str(each), parts=[]) for each in range(201)]),
        Page(first=4, groups=[], by_name={str(each): Part(name="x") for each in range(500)}),
    ],
)
def test_the_text_is_that_of_the_model(page: Page) -> None:
    assert json_of(page) == page.model_dump_json()


def test_a_client_that_takes_gzip_gets_it_where_the_answer_is_long() -> None:
    async def story(accepted: str, many: int = 200) -> httpx.Response:
        transport = httpx.ASGITransport(app_of())
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
            request = client.build_request(
                "GET", f"/plain?many={many}", headers={"Accept-Encoding": accepted}
            )
            answer = await client.send(request, stream=True)
            raw = b"".join([part async for part in answer.aiter_raw()])
            answer.headers["x-text"] = (
                gzip.decompress(raw) if "content-encoding" in answer.headers else raw
            ).decode()
            return answer

    ANSWERED.set()
    packed, plain = asyncio.run(story("br, gzip")), asyncio.run(story("identity"))
    assert packed.headers["content-encoding"] == "gzip"
    assert "content-encoding" not in plain.headers
    assert "content-encoding" not in asyncio.run(story("gzip", many=2)).headers
    assert json.loads(packed.headers["x-text"]) == json.loads(plain.headers["x-text"])
    assert packed.headers["vary"] == plain.headers["vary"] == "Accept-Encoding"
