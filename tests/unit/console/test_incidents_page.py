"""Incidents: filters, counts, the phases of a recovery, and stacks of the same place together."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gangline_console.pages.incidents import grouped, phases
from gangline_schemas.api.incidents import (
    Incident,
    IncidentDetail,
    IncidentPage,
    Share,
    Stacks,
    Totals,
)
from support.builders.console import console

AT = datetime(2026, 11, 26, 2, tzinfo=UTC)


def after(seconds: float) -> datetime:
    return AT + timedelta(seconds=seconds)


def incident(**changes: Any) -> Incident:
    """A hang of 8 ranks that recovered in 52 s."""
    values: dict[str, Any] = {
        "team": "research", "job_id": "llama-0a1b", "attempt": 1, "outcome": "recovered",
        "failure_class": "hang", "cause": "hang", "action": "restart",
        "message": "rank 3 was quiet", "first_rank": 3, "node_id": "node-1", "avoid_nodes": [],
        "review": False, "failures": 1, "world_size": 8, "last_step": 240, "committed_step": 200,
        "resume_step": 200, "failed_at": AT, "next_attempt": 2, "allocated_at": after(6),
        "running_at": after(30), "first_step_at": after(52), "closed_at": after(52),
        "recover_s": 52.0, "work_lost_s": 100.0, "down_s": 52.0, "lost_gpu_s": 1216.0,
    }  # fmt: skip
    return Incident.model_validate(values | changes)


NEVER = {
    "outcome": "job_failed", "action": "fail", "next_attempt": None, "allocated_at": None,
    "running_at": None, "first_step_at": None, "closed_at": AT, "recover_s": None, "down_s": 0.0,
}  # fmt: skip
"""A job that is not started again: the fault manager closes its incident with the verdict."""


def page(*found: Incident) -> IncidentPage:
    totals = Totals(
        incidents=len(found), recovered=1, recover_median_s=52.0, recover_p95_s=60.0,
        lost_gpu_s=7200.0, by_class=[Share(name="hang", incidents=3, lost_gpu_s=3600.0)],
        by_node=[Share(name="node-1", incidents=2, lost_gpu_s=1.0)], by_job=[],
        by_shard=[Share(name="corpus/shard-7", incidents=4, lost_gpu_s=0.0)],
    )  # fmt: skip
    return IncidentPage(incidents=list(found), totals=totals, notices=[], cursor="7.x")


def stacks(rank: int, text: str) -> Stacks:
    return Stacks(
        rank=rank, node_id="node-1", pid=7, state="sleeping", last_step=240, stacks=text,
        missing=None,
    )  # fmt: skip


def test_filters_are_asked_of_rest_and_kept_in_links() -> None:
    client, gateway = console({"GET /v1/incidents": page(incident())})
    text = client.get("/console/incidents?node=node-1&failure_class=hang&days=all").text
    asked = dict(next(item[1] for item in gateway.asked if item[0] == "GET /v1/incidents"))
    assert (asked["node"], asked["failure_class"], asked["since"]) == ("node-1", "hang", None)
    assert "node=node-1&amp;failure_class=hang&amp;days=all&amp;cursor=7.x" in text
    client.get("/console/incidents")
    assert dict(gateway.asked[-1][1])["since"] is not None


def test_the_list_shows_the_costs_and_counts_of_rest() -> None:
    client, _ = console({"GET /v1/incidents": page(incident())})
    text = client.get("/console/incidents").text
    for shown in ("2 GPU-h", "corpus/shard-7", "52 s", "rank 3", "recovered", "20.3 GPU-min"):
        assert shown in text, shown
    assert 'href="/console/incidents/llama-0a1b/1"' in text


def test_an_incident_shows_its_recovery_and_runbook() -> None:
    detail = IncidentDetail(incident=incident(), stacks=[stacks(0, "a"), stacks(1, "a")])
    client, _ = console({"GET /v1/incidents/llama-0a1b/1": detail})
    text = client.get("/console/incidents/llama-0a1b/1").text
    for shown in ("1,216", "40 steps", "2 ranks: 0, 1", "/console/docs/runbooks/hang.md"):
        assert shown in text, shown
    assert "style=" not in text


@pytest.mark.parametrize("lost_s", [0.0, 100.0])
def test_a_job_that_never_started_again_says_so(lost_s: float) -> None:
    detail = IncidentDetail(incident=incident(**NEVER, work_lost_s=lost_s), stacks=[])
    client, _ = console({"GET /v1/incidents/llama-0a1b/1": detail})
    text = client.get("/console/incidents/llama-0a1b/1").text
    assert "The job did not start again: the fault manager's decision was <b>fail</b>" in text
    assert "Waits for GPUs" not in text
    assert ("Work lost</span>" in text) == (lost_s > 0)


def test_phases_are_work_lost_then_each_part_until_the_first_step() -> None:
    found = [(one.name, one.first_s, one.last_s) for one in phases(incident(), after(9999))]
    assert found == [
        ("Work lost", -100.0, 0.0),
        ("Waits for GPUs", 0.0, 6.0),
        ("Starts its ranks", 6.0, 30.0),
        ("Restores and steps", 30.0, 52.0),
    ]
    assert [round(one.left) for one in phases(incident(), AT)] == [0, 66, 70, 86]


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"outcome": "open", "running_at": None, "first_step_at": None, "closed_at": None},
         ["Work lost", "Waits for GPUs", "Starts its ranks"]),
        ({"outcome": "job_ended", "allocated_at": None, "running_at": None,
          "first_step_at": None, "closed_at": after(33)}, ["Work lost", "Waits for GPUs"]),
        (NEVER, ["Work lost"]),
    ],
)  # fmt: skip
def test_an_incident_that_is_open_ends_now_and_one_without_restart_has_no_phases(
    changes: dict[str, Any], names: list[str]
) -> None:
    found = phases(incident(**changes), after(40))
    assert [one.name for one in found] == names
    assert all(one.last_s <= 40 for one in found)


def test_ranks_at_the_same_place_are_together_and_the_odd_one_is_first() -> None:
    found = grouped([stacks(0, "wait"), stacks(1, "read"), stacks(2, "wait")])
    assert [(text, [one.rank for one in ranks]) for text, ranks in found] == [
        ("read", [1]),
        ("wait", [0, 2]),
    ]


def test_texts_of_jobs_are_escaped() -> None:
    bad = incident(message="<script>alert(1)</script>", node_id='"><img src=x>')
    detail = IncidentDetail(incident=bad, stacks=[stacks(0, "<b>x</b>")])
    client, _ = console({"GET /v1/incidents": page(bad), "GET /v1/incidents/llama-0a1b/1": detail})
    for path in ("/console/incidents", "/console/incidents/llama-0a1b/1"):
        text = client.get(path).text
        assert "<script>alert" not in text
        assert "<img" not in text
        assert "<b>x" not in text
