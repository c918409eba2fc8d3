"""GET /v1/incidents: whose failures a caller sees, what is asked, and what is refused."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import httpx
import pytest

from gangline_gateway.incidents import IncidentFilter
from gangline_schemas.api.incidents import Incident, Notice, Share, Stacks, Totals
from gangline_service.tokens import Principal, Role
from support.clients.routes import ask, history_of, with_history

AT = datetime(2026, 11, 21, 10, tzinfo=UTC)
ADMIN = Principal(name="ada", role=Role.ADMIN, teams=frozenset())
MEMBER = Principal(name="ann", role=Role.MEMBER, teams=frozenset({"nlp", "vision"}))
EVE = Principal(name="eve", role=Role.MEMBER, teams=frozenset({"theirs"}))
ROW = Incident(
    team="nlp", job_id="a", attempt=1, outcome="open", failure_class="node", cause="node",
    action="restart", message="node n1 was silent for 60 s", first_rank=None, node_id="n1",
    avoid_nodes=["n1"], review=False, failures=1, world_size=8, last_step=None,
    committed_step=None, resume_step=None, failed_at=AT, next_attempt=None, allocated_at=None,
    running_at=None, first_step_at=None, closed_at=None, recover_s=None, work_lost_s=1.5,
    down_s=0.0, lost_gpu_s=12.0,
)  # fmt: skip


class FakeHistory:
    """Stands for ClickHouse: one incident, whatever is asked, and what was."""

    def __init__(self) -> None:
        self.filters: list[IncidentFilter] = []
        self.pages: list[tuple[int, str | None]] = []

    def page(
        self, wanted: IncidentFilter, *, limit: int = 50, cursor: str | None = None
    ) -> tuple[list[Incident], str | None]:
        self.filters.append(wanted)
        self.pages.append((limit, cursor))
        return [ROW], "more"

    def one(self, job_id: str, attempt: int, teams: frozenset[str] | None) -> Incident | None:
        mine = teams is None or ROW.team in teams
        return ROW if mine and (job_id, attempt) == (ROW.job_id, ROW.attempt) else None

    def stacks(self, job_id: str, attempt: int) -> list[Stacks]:
        return [
            Stacks(
                rank=rank, node_id="n1", pid=rank + 7, state="stopped", last_step=None,
                stacks="thread MainThread", missing=None,
            )
            for rank in range(2)
        ]  # fmt: skip

    def notices(self, wanted: IncidentFilter) -> list[Notice]:
        assert wanted == self.filters[-1]
        return [
            Notice(
                team="nlp", job_id="a", attempt=1, kind="straggling", rank=3, node_id="n1",
                message="rank 3 is slow", noted_at=AT,
            )
        ]  # fmt: skip

    def totals(self, wanted: IncidentFilter, *, shares: bool) -> Totals:
        assert wanted == self.filters[-1]
        return Totals(
            incidents=7,
            recovered=0,
            recover_median_s=None,
            recover_p95_s=None,
            lost_gpu_s=84.0,
            by_class=[Share(name="node", incidents=7, lost_gpu_s=84.0)],
            by_node=[Share(name="n1", incidents=7, lost_gpu_s=84.0)],
            by_job=[],
            by_shard=[],
        )


def get(
    asked: FakeHistory, caller: Principal, path: str = "/v1/incidents", **params: Any
) -> httpx.Response:
    return ask(with_history(history_of(incidents=asked)), caller, path, params=params)


def test_a_page_has_its_incidents_and_the_totals_of_all() -> None:
    asked = FakeHistory()
    answer = get(asked, ADMIN, limit=20, cursor="1.a.1").json()
    (found,) = answer["incidents"]
    assert (found["job_id"], found["message"], found["failed_at"]) == (
        "a",
        ROW.message,
        "2026-11-21T10:00:00Z",
    )
    assert answer["totals"]["by_class"] == [{"name": "node", "incidents": 7, "lost_gpu_s": 84.0}]
    assert answer["cursor"] == "more"
    assert asked.filters == [IncidentFilter()]
    assert asked.pages == [(20, "1.a.1")]


@pytest.mark.parametrize(
    ("caller", "team", "teams"),
    [
        (ADMIN, None, None),
        (ADMIN, ["nlp"], {"nlp"}),
        (MEMBER, None, {"nlp", "vision"}),
        (MEMBER, ["nlp", "theirs"], {"nlp"}),
        (MEMBER, ["theirs"], set()),
    ],
)
def test_a_caller_sees_its_own_teams(
    caller: Principal, team: list[str] | None, teams: set[str] | None
) -> None:
    asked = FakeHistory()
    params = {} if team is None else {"team": team}
    assert get(asked, caller, **params).status_code == 200
    assert asked.filters[0].teams == teams


def test_what_is_asked_for_is_what_is_looked_for() -> None:
    asked = FakeHistory()
    get(asked, ADMIN, job="a", node="n1", failure_class=["node", "data"], since=AT.isoformat())
    wanted = IncidentFilter(job_id="a", node_id="n1", classes=("node", "data"), since=AT)
    assert asked.filters == [wanted]


@pytest.mark.parametrize(
    "params",
    [
        {"since": "2026-11-21T10:00:00"},
        {"failure_class": "gremlins"},
        {"job": "A' OR 1"},
        {"limit": 0},
        {"limit": 201},
    ],
)
def test_what_cannot_be_is_refused(params: dict[str, Any]) -> None:
    assert get(FakeHistory(), ADMIN, **params).status_code == 422


def test_what_was_noticed_stands_on_the_first_page() -> None:
    (notice,) = get(FakeHistory(), ADMIN).json()["notices"]
    assert (notice["kind"], notice["rank"]) == ("straggling", 3)
    assert notice["message"] == "rank 3 is slow"
    assert get(FakeHistory(), ADMIN, cursor="1.a.1").json()["notices"] == []


def test_one_incident_has_the_stacks_of_its_ranks() -> None:
    answer = get(FakeHistory(), MEMBER, "/v1/incidents/a/1").json()
    assert answer["incident"]["message"] == ROW.message
    assert [(item["rank"], item["state"]) for item in answer["stacks"]] == [
        (0, "stopped"),
        (1, "stopped"),
    ]


@pytest.mark.parametrize(
    ("path", "caller", "status"),
    [
        ("/v1/incidents/a/2", ADMIN, 404),
        ("/v1/incidents/a/0", ADMIN, 422),
        ("/v1/incidents/a/1", EVE, 404),
    ],
)
def test_an_incident_that_is_not_there_for_the_caller(
    path: str, caller: Principal, status: int
) -> None:
    assert get(FakeHistory(), caller, path).status_code == status
