"""GET /v1/audit: what is asked of the audit log for whom."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from gangline_gateway.audit_trail import AuditFilter
from gangline_schemas.api.access import AuditPage
from gangline_service.tokens import Principal, Role
from support.clients.routes import ask, history_of, with_history

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
    app = with_history(history_of(audit=asked))
    return ask(app, caller, "/v1/audit", params=params).status_code


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
