"""GET /v1/audit: what is asked of the audit log for whom."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
from starlette.types import Receive, Scope, Send

from gangline_gateway.app import over
from gangline_gateway.app_context import AppContext
from gangline_gateway.audit_trail import AuditFilter
from gangline_gateway.history_access import HistoryAccess, Queries
from gangline_schemas.api.access import AuditPage
from gangline_service.tokens import Principal, Role

AT = datetime(2026, 11, 21, 10, tzinfo=UTC)
ADMIN = Principal(name="root", role=Role.ADMIN, teams=frozenset())
MEMBER = Principal(name="ada", role=Role.MEMBER, teams=frozenset({"nlp"}))


class FakeHistory:
    """Stands for ClickHouse."""

    def __init__(self) -> None:
        self.filters: list[AuditFilter] = []

    def page(self, wanted: AuditFilter, **_: object) -> AuditPage:
        self.filters.append(wanted)
        return AuditPage(entries=[], cursor=None)


def get(asked: FakeHistory, caller: Principal, **params: Any) -> int:
    away: Any = None
    trail: Any = asked
    queries = Queries(away, away, away, away, away, away, away, audit=trail)
    app = over(AppContext(away, away, HistoryAccess(lambda: queries), *[away] * 5))

    async def as_caller(scope: Scope, receive: Receive, send: Send) -> None:
        scope.setdefault("state", {})["principal"] = caller
        await app(scope, receive, send)

    async def ask() -> int:
        transport = httpx.ASGITransport(as_caller)
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
            return (await client.get("/v1/audit", params=params)).status_code

    return asyncio.run(ask())


def test_a_member_sees_its_teams_and_itself_and_an_admin_sees_all() -> None:
    asked = FakeHistory()
    assert get(asked, MEMBER, team="vision", user="bob") == 200
    assert get(asked, ADMIN, action="job", outcome="refused", since=AT.isoformat()) == 200
    assert get(asked, MEMBER.model_copy(update={"via": "access-token"})) == 200
    assert asked.filters == [
        AuditFilter(teams=frozenset({"nlp"}), own="ada", team="vision", user="bob"),
        AuditFilter(own="root", action="job", outcome="refused", since=AT),
        AuditFilter(teams=frozenset({"nlp"})),
    ]
    where = asked.filters[-1].where()
    assert "own" not in where.parameters, "the user of some refusals is empty too"
    assert "own" not in where.sql


@pytest.mark.parametrize(
    "params",
    [{"action": "Job' OR 1"}, {"outcome": "maybe"}, {"since": "2026-11-21T10:00:00"}, {"limit": 0}],
)
def test_what_cannot_be_is_refused(params: dict[str, Any]) -> None:
    assert get(FakeHistory(), ADMIN, **params) == 422
