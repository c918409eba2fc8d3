"""GET /v1/runs/points: whose points a caller gets, and where the next page is."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from starlette.types import ASGIApp, Message, Scope

from gangline_gateway.app_context import PAGES_PER_USER
from gangline_gateway.run_points import PointPage, PointQuery
from gangline_service.tokens import Principal, Role
from support.clients import routes
from support.clients.routes import as_caller, history_of, with_history

PATH = "/v1/runs/points"
ADMIN = Principal(name="root", role=Role.ADMIN, teams=frozenset())
VISION = Principal(name="bob", role=Role.MEMBER, teams=frozenset({"vision"}))
OWNERS = {"job-a": "nlp", "job-b": "vision"}


class Source:
    """Knows two jobs, and answers each query with one page of two."""

    def __init__(self) -> None:
        self.asked: list[PointQuery] = []

    def some_runs(self, job_ids: Sequence[str], teams: frozenset[str] | None) -> list[Any]:
        return [
            SimpleNamespace(run=SimpleNamespace(run_id=job, team=OWNERS[job]))
            for job in job_ids
            if job in OWNERS and (teams is None or OWNERS[job] in teams)
        ]

    def page(self, wanted: PointQuery) -> PointPage:
        self.asked.append(wanted)
        if wanted.cursor == "bad":
            raise ZeroDivisionError
        return PointPage(b"bytes", "next=&" if wanted.cursor is None else None)


def served(source: Source) -> ASGIApp:
    return with_history(history_of(history=source, points=source))


def ask(source: Source, caller: Principal, path: str, **params: Any) -> httpx.Response:
    return routes.ask(served(source), caller, path, params=params or None)


def test_pages_follow_the_link() -> None:
    source = Source()
    run = ["job-a", "job-b"]
    first = ask(source, ADMIN, PATH, run=run, format="parquet", limit=7, name="loss", first=3)
    assert (first.status_code, first.content) == (200, b"bytes")
    assert first.headers["content-type"] == "application/vnd.apache.parquet"
    last = ask(source, ADMIN, first.links["next"]["url"])
    assert "link" not in last.headers
    assert [query.cursor for query in source.asked] == [None, "next=&"]
    for query in source.asked:
        assert (query.runs, query.names, query.first, query.limit) == (OWNERS, ("loss",), 3, 7)
        assert query.format == "parquet"


def test_a_team_gets_its_own_points_only() -> None:
    source = Source()
    assert ask(source, VISION, PATH, run=["job-a", "job-b"]).status_code == 404
    assert source.asked == []
    answer = ask(source, VISION, PATH, run="job-b")
    assert answer.headers["content-type"] == "application/x-ndjson"
    ask(source, VISION, PATH, run="a" * 32, kind="mlflow")
    ask(source, ADMIN, PATH, run="a" * 32, kind="mlflow")
    assert [query.teams for query in source.asked[1:]] == [VISION.teams, None]


def test_few_pages_wait_for_a_client_that_does_not_read() -> None:
    source = Source()

    async def check() -> None:
        app, read = as_caller(served(source), ADMIN), asyncio.Event()
        statuses: asyncio.Queue[int] = asyncio.Queue()

        async def page(cursor: str = "") -> None:
            scope: Scope = {
                "type": "http", "method": "GET", "path": PATH, "headers": [],
                "query_string": f"run=job-a{cursor}".encode(), "server": ("gateway", 80),
            }  # fmt: skip

            async def send(message: Message) -> None:
                if message["type"] == "http.response.start":
                    statuses.put_nowait(message["status"])
                else:
                    await read.wait()

            async def receive() -> Message:
                return {"type": "http.request", "body": b"", "more_body": False}

            await app(scope, receive, send)

        read.set()
        for _ in range(PAGES_PER_USER + 1):
            with pytest.raises(ZeroDivisionError):
                await page("&cursor=bad")
            assert await statuses.get() == 500
        read.clear()
        waiting = [asyncio.create_task(page()) for _ in range(PAGES_PER_USER)]
        assert [await statuses.get() for _ in waiting] == [200] * PAGES_PER_USER
        waiting.append(asyncio.create_task(page()))
        assert await statuses.get() == 429
        read.set()
        await asyncio.gather(*waiting)
        await page()
        assert await statuses.get() == 200

    asyncio.run(check())


def test_what_cannot_be_asked() -> None:
    for wrong in (
        {}, {"run": ["a"] * 101}, {"run": "A/B"}, {"run": "a", "limit": 500_001},
        {"run": "a", "kind": "x"}, {"run": "a", "format": "csv"},
    ):  # fmt: skip
        assert ask(Source(), ADMIN, PATH, **wrong).status_code == 422
