"""The time machine: times of the address, differences between two times, a history still read."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from gangline_console.pages.time import Difference, differences
from gangline_schemas.api.cluster import GpuMap, MapNode, Queue
from gangline_schemas.api.history import HistoryRange, JobAt, PlatformAt
from gangline_schemas.api.runs import Run, RunPage
from support.builders.console import AT, console
from support.builders.runs import run
from support.fakes.console_gateway import problem

RANGE = HistoryRange(earliest=AT - timedelta(days=2), newest=AT)


def job(job_id: str = "j-1", **changes: Any) -> JobAt:
    values = {
        "job_id": job_id, "name": "llama", "team": "nlp", "project": None, "user": "ana",
        "state": "running", "priority": 50, "gpus": 8, "gpus_allocated": 8, "attempt": 1,
        "submitted_at": AT, "allocated_at": AT, "waiting": None, "stopping": None,
        "nodes": [{"node_id": "n-1", "gpus": [0], "first_rank": 0}], "checkpoint_step": 1200,
    }  # fmt: skip
    return JobAt.model_validate(values | changes)


def platform(*jobs: JobAt, status: str = "ready") -> PlatformAt:
    node = MapNode(
        node_id="n-1", status=status, block="b", rack="r", model="h100", gpus=[0], gangs=[]
    )
    gpus = GpuMap(
        at=AT, gpus=1, nodes_all=1, gpus_ready=1, gpus_used=1, largest_gangs=[], nodes=[node]
    )
    queue = Queue.model_validate({"queue": [], "pending_jobs": 0, "pending_gpus": 0})
    running = sum(job.gpus_allocated > 0 for job in jobs)
    return PlatformAt(
        at=AT, events=7, jobs=list(jobs), jobs_all=len(jobs), jobs_allocated=running,
        queue=queue, gpus=gpus,
    )  # fmt: skip


def answers(found: Any, *ended: Run) -> dict[str, Any]:
    return {
        "GET /v1/history/range": RANGE,
        "GET /v1/history/at": found,
        "GET /v1/runs": RunPage(runs=[*ended], cursor=None),
    }


def asked_of_history(gateway: Any) -> list[Any]:
    return [query for path, query, _ in gateway.asked if path == "GET /v1/history/at"]


@pytest.mark.parametrize(
    ("at", "asked"),
    [
        ("", AT),
        ("2026-11-25T10:00:00", AT.replace(day=25, hour=10)),
        ("2026-11-25T10:00:00%2B01:00", AT.replace(day=25, hour=9)),
        ("2020-01-01T00:00:00Z", RANGE.earliest),
        ("2040-01-01T00:00:00Z", AT),
        ("yesterday", AT),
    ],
)
def test_the_time_of_the_address_is_asked_of_rest_within_what_is_retained(
    at: str, asked: Any
) -> None:
    client, gateway = console(answers(platform()))

    answer = client.get(f"/console/time?at={at}")

    assert answer.status_code == 200
    assert asked_of_history(gateway) == [{"time": asked.isoformat(), "limit": 100, "nodes": False}]
    assert f'data-at="{asked.isoformat()}"' in answer.text
    assert ("is no time" in answer.text) == (at == "yesterday")


def test_jobs_that_came_went_or_changed_and_nodes_are_the_differences() -> None:
    before = platform(job("gone"), job("moved"), job("same"))
    after = platform(
        job("new", state="pending", attempt=0, gpus_allocated=0, checkpoint_step=None),
        job("moved", attempt=2),
        job("same"),
        status="failed",
    )

    on_n1 = "8 GPUs on n-1, checkpoint at step 1,200"
    assert list(differences(before, after)) == [
        Difference("job", "gone", f"running, attempt 1, {on_n1}", "not there"),
        Difference("job", "moved", f"running, attempt 1, {on_n1}", f"running, attempt 2, {on_n1}"),
        Difference("job", "new", "not there", "pending, attempt 0"),
        Difference("node", "n-1", "ready", "failed"),
    ]
    assert list(differences(before, before)) == []


def test_the_first_rows_are_shown_until_all_are_asked_for() -> None:
    found = platform(job()).model_copy(update={"jobs_all": 1500})
    client, gateway = console(answers(found))
    assert "1 of 1,500 jobs" in client.get("/console/time").text
    client.get("/console/time?all=1")
    assert [query["limit"] for query in asked_of_history(gateway)] == [100, None]


def test_jobs_that_had_ended_come_from_the_history_of_runs() -> None:
    ended = run("over-1").model_copy(
        update={"state": "failed", "ended_at": AT - timedelta(minutes=3)}
    )
    client, gateway = console(answers(platform(), ended))
    text = client.get("/console/time").text
    assert "over-1" in text.partition('id="ended"')[2]
    assert "3 min" in text
    (asked,) = [query for path, query, _ in gateway.asked if path == "GET /v1/runs"]
    assert asked["where"] == f"ended_at <= '{AT.isoformat()}'"
    assert asked["order_by"] == "ended_at DESC"


def test_a_history_that_is_still_read_is_asked_again() -> None:
    later = problem(503, "not-read-yet", "1,000 of 90,000 decisions are read")
    client, _ = console(answers(later))

    answer = client.get("/console/time")

    assert answer.headers["refresh"] == "1"
    assert "1,000 of 90,000 decisions are read" in answer.text


def test_before_the_first_decision_the_page_says_how_history_begins() -> None:
    client, _ = console({"GET /v1/history/range": HistoryRange(earliest=None, newest=AT)})

    assert "gangline submit" in client.get("/console/time").text


def test_a_time_outside_of_all_years_is_a_line_on_the_page() -> None:
    client, _ = console(answers(platform()))
    answer = client.get("/console/time", params={"at": "0001-01-01T00:00:00+14:00"})
    assert answer.status_code == 200
    assert "is no time" in answer.text
