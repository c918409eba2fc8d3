"""The gateway's routes for a caller: without a server, a token or a bus."""

from __future__ import annotations

import asyncio
from dataclasses import fields
from typing import Any

import httpx
from starlette.types import ASGIApp, Receive, Scope, Send

from gangline_gateway.app import over
from gangline_gateway.app_context import AppContext
from gangline_gateway.history_access import HistoryAccess, Queries
from gangline_service.tokens import Principal


def history_of(**queries: Any) -> HistoryAccess:
    """These queries of history, by the names of `Queries`; all others are away."""
    given = Queries(**{each.name: queries.get(each.name) for each in fields(Queries)})
    return HistoryAccess(lambda: given)


def with_history(history: HistoryAccess, **parts: Any) -> ASGIApp:
    """The routes of a gateway that has history and these parts alone."""
    away: Any = None
    return over(AppContext(away, away, history, away, away, away, away, away, **parts))


def as_caller(app: ASGIApp, caller: Principal) -> ASGIApp:
    """The routes as they are for this caller."""

    async def known(scope: Scope, receive: Receive, send: Send) -> None:
        scope.setdefault("state", {})["principal"] = caller
        await app(scope, receive, send)

    return known


def ask(
    app: ASGIApp, caller: Principal, path: str, method: str = "GET", **given: Any
) -> httpx.Response:
    """The answer to this caller."""

    async def answer() -> httpx.Response:
        transport = httpx.ASGITransport(as_caller(app, caller))
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
            return await client.request(method, path, **given)

    return asyncio.run(answer())
