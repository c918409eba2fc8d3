"""Teams: bars with numbers, a budget at its pace, use over time, and the weekly report."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

from gangline_console.pages.teams import Row, figures
from gangline_schemas.api.cluster import Team, TeamList
from gangline_schemas.api.reports import (
    ClusterUse,
    TeamUse,
    UtilizationReport,
    Waits,
    Week,
    WeeklyReport,
)
from support.builders.console import console
from support.fakes.console_gateway import problem

AT = datetime(2026, 11, 16, tzinfo=UTC)
"""Half of the month is over."""


def team(name: str = "nlp", **changes: Any) -> Team:
    values: dict[str, Any] = {
        "team": name, "parent": "research", "depth": 1, "gpu_limit": 64, "gpu_guarantee": 32,
        "borrow_limit": 16, "weight": 1.0, "surplus": None, "gpu_types": [],
        "gpu_hours_per_month": 1000.0, "job_limit": 100, "gpus_used": 74, "gpus_borrowed": 10,
        "jobs_running": 3, "jobs_pending": 1, "gpu_seconds": 0.0, "month": "2026-11",
        "gpu_hours_this_month": 600.0, "out_of_budget": False,
    }  # fmt: skip
    return Team.model_validate(values | changes)


def cluster() -> ClusterUse:
    return ClusterUse(
        gpus_total=256, gpus_allocated=180, gpus_total_mean=250.0, gpus_allocated_mean=170.0,
        gpu_hours_total=42_000.0, gpu_hours_allocated=28_600.0, utilization=0.68,
        gpu_utilization=None,
    )  # fmt: skip


def report() -> UtilizationReport:
    use = TeamUse(
        team="nlp", parent=None, gpu_limit=64, gpu_guarantee=32, borrow_limit=16, gpus_allocated=74,
        gpus_allocated_mean=43.5, gpu_hours_allocated=7307.0, gpus_share=32.0, utilization=1.36,
        gpu_utilization=0.81, mfu=0.372, gpus_pending=8, gpu_hours_pending=120.0,
        gpus_by_part=[0.0, 64.0, 32.0],
    )  # fmt: skip
    return UtilizationReport(
        since=AT, until=AT, cluster=cluster(), teams=[use], mfu=None, gpus_pending=0,
        gpu_hours_pending=0.0,
    )  # fmt: skip


def week(submitted: int) -> Week:
    waits = Waits(name="all", jobs=3, p50_s=40.0, p95_s=300.0, waiting=2)
    return Week(
        since=AT, until=AT, cluster=cluster(), mfu=None, gpu_hours_pending=0.0,
        jobs_submitted=submitted, jobs_ended=1, jobs_succeeded=1, jobs_failed=0, jobs_cancelled=0,
        completion_rate=1.0, wait=waits, wait_by_gpus=[waits], wait_by_priority=[waits], failures=0,
        repairs=0, mttr_s=None, preemptions=0, preemption_gpu_hours=0.0, unused_quota=[],
        low_mfu=[],
    )  # fmt: skip


def test_a_team_shows_its_gpus_budget_and_use() -> None:
    client, gateway = console(
        {"GET /v1/teams": TeamList(teams=[team()]), "GET /v1/reports/utilization": report()}
    )
    text = client.get("/console/teams?days=30").text
    for shown in ("74 of 64 GPUs · 10 borrowed", "600 of 1,000 GPU-h", "136 %", "37.2 %", "43.5"):
        assert shown in text, shown
    assert 'points="0.00,24.00 50.00,0.00 100.00,12.00"' in text
    asked = next(item[1] for item in gateway.asked if item[0] == "GET /v1/reports/utilization")
    assert dict(asked)["parts"] == 96


def test_a_page_without_history_still_has_the_teams() -> None:
    away = problem(503, "history-away", "ClickHouse does not answer")
    client, _ = console(
        {"GET /v1/teams": TeamList(teams=[team()]), "GET /v1/reports/utilization": away}
    )
    answer = client.get("/console/teams")
    assert answer.status_code == 200
    assert "74 of 64 GPUs" in answer.text
    assert "history is away" in answer.text


def test_a_budget_is_judged_by_its_pace() -> None:
    row = Row.of(team(), None, AT)
    assert row.expected_hours == 1200.0
    assert row.budget_kind == "warn"
    assert Row.of(team(gpu_hours_this_month=400.0), None, AT).budget_kind == "good"
    assert Row.of(team(out_of_budget=True), None, AT).budget_kind == "bad"
    assert Row.of(team(), None, datetime(2026, 11, 1, 1, tzinfo=UTC)).expected_hours is None
    assert (row.own, row.most, row.month_ends.isoformat()[:10]) == (64, 80, "2026-12-01")


def test_the_weekly_report_compares_with_the_week_before() -> None:
    found = WeeklyReport(week="2026-W47", this=week(140), before=week(90))
    client, _ = console({"GET /v1/reports/weekly": found})
    text = client.get("/console/teams/weekly?week=2026-W47").text
    assert "140" in text
    assert "90" in text
    assert "2026-W46" in text
    names = {name: (this, before) for name, _, this, before, _ in figures(week(140), week(90))}
    assert names["Jobs submitted"] == (140, 90)
    assert names["Mean time to running again"] == (None, None)


def test_one_job_of_a_week_is_a_job() -> None:
    found = WeeklyReport(week="2026-W47", this=week(1), before=week(0))
    client, _ = console({"GET /v1/reports/weekly": found})
    text = re.sub(r"<[^>]+>", "", client.get("/console/teams/weekly").text)
    assert "Jobs submitted1 job0 jobs" in text
    assert "Gangs that failed0 gangs0 gangs" in text
