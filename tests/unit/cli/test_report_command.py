"""`gangline report`: what it asks, tables that fit, the page as a file, bad times."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.fakes.stub_gateway import NOW, Reply, Stub, problem
from support.harnesses.cli_run import Runner

UTILIZATION, WEEKLY = "/v1/reports/utilization", "/v1/reports/weekly"
CLUSTER = {
    "gpus_total": 10_412, "gpus_allocated": 9_120, "gpus_total_mean": 10_400.5,
    "gpus_allocated_mean": 8_800.25, "gpu_hours_total": 1_747_284.0,
    "gpu_hours_allocated": 1_478_442.0, "utilization": 0.846, "gpu_utilization": None,
}  # fmt: skip
TEAM = {
    "team": "a-team-with-a-very-long-name", "parent": None, "gpu_limit": 6144,
    "gpu_guarantee": 4096, "borrow_limit": 0, "gpus_allocated": 4096,
    "gpus_allocated_mean": 4000.0,
    "gpu_hours_allocated": 688_128.5, "gpus_share": 4096.0, "utilization": 1.21,
    "gpu_utilization": 0.93, "mfu": 0.412, "gpus_pending": 12_800, "gpu_hours_pending": 1234.5,
}  # fmt: skip
GUEST = TEAM | {
    "team": "guest", "gpu_limit": None, "gpu_guarantee": None, "utilization": None, "mfu": None,
    "gpu_utilization": None,
}  # fmt: skip
USE = {
    "since": NOW, "until": NOW, "cluster": CLUSTER, "teams": [TEAM, GUEST], "mfu": 0.4,
    "gpus_pending": 7, "gpu_hours_pending": 12.25,
}  # fmt: skip


def waits(name: str, p95_s: float | None) -> dict[str, Any]:
    return {"name": name, "jobs": 3, "p50_s": p95_s, "p95_s": p95_s, "waiting": 1}


def week(**fields: Any) -> dict[str, Any]:
    return {
        "since": NOW, "until": NOW, "cluster": CLUSTER, "mfu": 0.4, "gpu_hours_pending": 88.0,
        "jobs_submitted": 12, "jobs_ended": 10, "jobs_succeeded": 9, "jobs_failed": 1,
        "jobs_cancelled": 0, "completion_rate": 0.9, "wait": waits("all", 7265.0),
        "wait_by_gpus": [waits("1", None), waits("> 128", 400_000.0)],
        "wait_by_priority": [waits("0-19", 5.0)], "failures": 2, "repairs": 1, "mttr_s": 95.0,
        "preemptions": 1, "preemption_gpu_hours": 3.5, "unused_quota": [], "low_mfu": [],
    } | fields  # fmt: skip


THIS = week(
    unused_quota=[
        {"team": "vision", "gpu_guarantee": 8, "gpus_allocated_mean": 1.5, "used": 0.1875}
    ],
    low_mfu=[{"job_id": "x" * 63, "team": "nlp", "name": "x", "mfu": 0.12, "gpu_hours": 10_000.5}],
)
WEEK = {"week": "2026-W47", "this": THIS, "before": week(mttr_s=None)}


def cells(text: str, first: str) -> list[str]:
    """The words of the line that begins with `first`."""
    return next(line.split() for line in text.splitlines() if line.split()[:1] == [first])


def test_utilization_fits_and_asks_for_the_period(gangline: Runner, stub: Stub) -> None:
    stub.on("GET", UTILIZATION, USE)
    shown = gangline(
        "report", "utilization", "--from", "2026-11-20", "--to", "2026-11-21T08:00+02:00"
    )
    assert shown.code == 0, shown.err
    assert stub.asked[-1].query == {
        "from": ["2026-11-20T00:00:00+00:00"], "to": ["2026-11-21T08:00:00+02:00"]
    }  # fmt: skip
    assert max(len(line) for line in shown.out.splitlines()) <= 80
    assert "1,478,442.0 of 1,747,284.0 allocated: 84.6 %" in shown.out
    assert cells(shown.out, "guest")[2:6] == ["-", "688,128.5", "-", "-"]
    assert "4096/6144" in shown.out
    assert gangline("report", "utilization", "--json").json["cluster"]["gpus_total"] == 10_412
    assert stub.asked[-1].query == {}


def test_weekly_fits_and_shows_the_week_before(gangline: Runner, stub: Stub) -> None:
    stub.on("GET", WEEKLY, WEEK)
    shown = gangline("report", "weekly", "--week", "2026-W47")
    assert (shown.code, stub.asked[-1].query) == (0, {"week": ["2026-W47"]})
    assert max(len(line) for line in shown.out.splitlines()) <= 80
    assert cells(shown.out, "mean")[5:] == ["1", "min", "35", "s", "-"]
    assert cells(shown.out, ">")[2:] == [
        "3", "4", "d", "15", "h", "4", "d", "15", "h", "4", "d", "15", "h", "1",
    ]  # fmt: skip
    assert cells(shown.out, "vision") == ["vision", "8", "1.5", "18.8", "%"]
    assert "10,000.5" in shown.out
    assert gangline("--json", "report", "weekly").json["this"]["low_mfu"][0]["mfu"] == 0.12


def test_a_page_is_written_as_it_came(gangline: Runner, stub: Stub, tmp_path: Path) -> None:
    stub.on("GET", WEEKLY, Reply(page="<!doctype html><p>é"))
    file = tmp_path / "week.html"
    shown = gangline("report", "weekly", "--html", str(file))
    assert (shown.code, shown.out) == (0, "")
    assert file.read_text(encoding="utf-8") == "<!doctype html><p>é"
    assert str(file) in shown.err
    assert stub.asked[-1].headers["accept"] == "text/html"
    nowhere = gangline("report", "weekly", "--html", str(tmp_path / "no" / "week.html"))
    assert nowhere.code == 1
    assert "--html" in nowhere.err


def test_what_is_no_page_is_not_written(gangline: Runner, stub: Stub, tmp_path: Path) -> None:
    stub.on("GET", WEEKLY, WEEK)
    file = tmp_path / "week.html"
    assert gangline("report", "weekly", "--html", str(file)).code == 1
    assert not file.exists()


@pytest.mark.parametrize("options", [["--from", "yesterday"], ["--to", "2026-13-01"]])
def test_a_time_that_is_none_is_refused_here(
    gangline: Runner, stub: Stub, options: list[str]
) -> None:
    shown = gangline("report", "utilization", *options)
    assert (shown.code, stub.asked) == (2, [])
    assert options[0] in shown.err


def test_a_week_that_is_none_is_refused_there(gangline: Runner, stub: Stub) -> None:
    stub.on("GET", WEEKLY, problem(422, "invalid", "week: has not begun yet"))
    shown = gangline("report", "weekly", "--week", "2030-W01")
    assert shown.code == 2
    assert "has not begun yet" in shown.err
