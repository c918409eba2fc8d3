"""The platform at a past time equals what the live routes said then."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import httpx
import pytest

from gangline_gateway.problems import ProblemError
from gangline_gateway.state_history import StateHistory
from gangline_schemas.catalog import Topic
from support.builders.gateway import GatewayHarness
from support.fixtures.gateway_http import ADMIN, NLP, VISION, harness, http_client, problem, submit

__all__ = ["harness", "http_client"]  # fixtures are used by being in this module

RANGE, AT = "/v1/history/range", "/v1/history/at"
JOB_FIELDS = ("job_id", "name", "team", "project", "user", "state", "priority", "gpus",
              "gpus_allocated", "attempt", "submitted_at", "waiting")  # fmt: skip


def live(client: httpx.Client, headers: dict[str, str]) -> dict[str, Any]:
    """What the live routes say, as /v1/history/at has it."""
    jobs = client.get("/v1/training-jobs?limit=200", headers=headers).json()["jobs"]
    return {
        "jobs": sorted(
            ({name: job[name] for name in JOB_FIELDS} for job in jobs if job["ended_at"] is None),
            key=lambda job: job["job_id"],
        ),
        "queue": _timeless(client.get("/v1/queue", headers=headers).json()),
        "gpus": _timeless(client.get("/v1/gpus", headers=headers).json()),
    }


def then(client: httpx.Client, at: datetime, headers: dict[str, str]) -> dict[str, Any]:
    answer = client.get(AT, params={"time": at.isoformat()}, headers=headers)
    assert answer.status_code == 200, answer.text
    found = answer.json()
    return {
        "jobs": sorted(
            ({name: job[name] for name in JOB_FIELDS} for job in found["jobs"]),
            key=lambda job: job["job_id"],
        ),
        "queue": _timeless(found["queue"]),
        "gpus": _timeless(found["gpus"]),
    }


def _timeless(found: Any) -> Any:
    """Without what changes as time passes."""
    if isinstance(found, dict):
        gone = {"at", "waited_s", "score", "order", "expected", "utilization"}
        return {key: _timeless(value) for key, value in found.items() if key not in gone}
    return [_timeless(item) for item in found] if isinstance(found, list) else found


def wait_for(client: httpx.Client, harness: GatewayHarness, **states: str) -> datetime:
    """A time at which these jobs are in these states and the scheduler has nothing to decide."""

    def reached() -> bool:
        path = "/v1/training-jobs/"
        shown = {job: client.get(path + job, headers=ADMIN).json() for job in states}
        return all(
            shown[job]["state"] == state and (state != "pending" or shown[job]["waiting"])
            for job, state in states.items()
        )

    harness.wait(reached)
    places = harness.tail.places(Topic.SCHEDULING)
    ends: list[object] = []

    def quiet() -> bool:
        ends.append(harness.tail.ends(places))
        return len(ends) > 40 and ends[-40] == ends[-1]

    harness.wait(quiet)
    return datetime.now(UTC)


def test_the_past_is_what_the_live_routes_said(
    http_client: httpx.Client, harness: GatewayHarness
) -> None:
    moments: list[tuple[datetime, dict[str, Any], dict[str, Any]]] = []

    def record(**states: str) -> None:
        at = wait_for(http_client, harness, **states)
        moments.append((at, live(http_client, NLP), live(http_client, ADMIN)))

    before = datetime.now(UTC)
    assert http_client.get(RANGE, headers=NLP).json()["earliest"] < before.isoformat()
    harness.join("node-1", gpus=4)
    record()
    first = submit(http_client, gpus=3)
    theirs = submit(http_client, VISION, team="vision", gpus=2)
    record(**{first: "scheduled", theirs: "pending"})
    harness.join("node-2", gpus=2)
    record(**{theirs: "scheduled"})
    last = submit(http_client, gpus=4, name="late", priority=10)
    record(**{last: "pending"})
    http_client.post(f"/v1/training-jobs/{last}/cancel", headers=NLP)
    record(**{last: "cancelled"})
    assert [len(nlp["jobs"]) for _, nlp, _ in moments] == [0, 1, 1, 2, 1]
    for at, nlp, admin in [*reversed(moments), *moments]:
        assert then(http_client, at, NLP) == nlp
        assert then(http_client, at, ADMIN) == admin
    few = {"time": moments[-2][0].isoformat(), "limit": 1, "nodes": False, "steps": True}
    found = http_client.get(AT, params=few, headers=ADMIN).json()
    assert (len(found["jobs"]), found["jobs_all"], found["jobs_allocated"]) == (1, 3, 2)
    assert (found["gpus"]["nodes"], found["gpus"]["nodes_all"]) == ([], 2)
    names = str(then(http_client, moments[-1][0], NLP))
    assert theirs not in names
    assert "vision" not in names


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("2020-01-01T00:00:00Z", "before the first decision"),
        ("2199-01-01T00:00:00Z", "not come yet"),
        ("2026-01-01T00:00:00", "zone"),
        ("yesterday", "time"),
    ],
)
def test_a_time_without_an_answer_says_why(http_client: httpx.Client, text: str, why: str) -> None:
    refused = problem(http_client.get(AT, params={"time": text}, headers=NLP), 422, "invalid")
    assert why in refused["detail"]
    problem(http_client.get(AT, params={"time": text}), 401, "no-token")


def test_a_long_log_is_read_in_parts_and_one_time_after_the_other(
    http_client: httpx.Client, harness: GatewayHarness
) -> None:
    submit(http_client, gpus=1)
    now = datetime.now(UTC)
    places = harness.tail.places(Topic.SCHEDULING)
    slow, asked = StateHistory(harness.bus, places, within_s=-1.0, pause_each=3), 0
    events = StateHistory(harness.bus, places).shards(now)[1]
    while asked < events:
        asked += 1
        try:
            assert slow.shards(now)[1] == events
            break
        except ProblemError as error:
            code = error.code
    assert code == "not-read-yet"
    assert 1 < asked < events
