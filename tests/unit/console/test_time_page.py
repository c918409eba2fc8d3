"""The time machine: times of the address, differences between two times, a history still read."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from gangline_console.pages.time import Difference, differences
from gangline_schemas.api.cluster import GpuMap, MapNode, Queue
from gangline_schemas.api.history import HistoryRange, JobAt, PlatformAt
from support.builders.console import AT, console
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
    gpus = GpuMap(at=AT, gpus=1, gpus_ready=1, gpus_used=1, largest_gangs=[], nodes=[node])
    queue = Queue.model_validate({"queue": [], "pending_jobs": 0, "pending_gpus": 0})
    return PlatformAt(at=AT, events=7, jobs=list(jobs), queue=queue, gpus=gpus)


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
    client, gateway = console({"GET /v1/history/range": RANGE, "GET /v1/history/at": platform()})

    answer = client.get(f"/console/time?at={at}")

    assert answer.status_code == 200
    assert gateway.asked[-1][1] == {"time": asked.isoformat()}
    assert '"node_id": "n-1"' in answer.text.partition("data-nodes='")[2].partition("'>")[0]
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


def test_a_history_that_is_still_read_is_asked_again() -> None:
    later = problem(503, "not-read-yet", "1,000 of 90,000 decisions are read")
    client, _ = console({"GET /v1/history/range": RANGE, "GET /v1/history/at": later})

    answer = client.get("/console/time")

    assert answer.headers["refresh"] == "1"
    assert "1,000 of 90,000 decisions are read" in answer.text


def test_before_the_first_decision_the_page_says_how_history_begins() -> None:
    client, _ = console({"GET /v1/history/range": HistoryRange(earliest=None, newest=AT)})

    assert "gangline submit" in client.get("/console/time").text


def test_a_time_outside_of_all_years_is_a_line_on_the_page() -> None:
    client, _ = console({"GET /v1/history/range": RANGE, "GET /v1/history/at": platform()})
    answer = client.get("/console/time", params={"at": "0001-01-01T00:00:00+14:00"})
    assert answer.status_code == 200
    assert "is no time" in answer.text
