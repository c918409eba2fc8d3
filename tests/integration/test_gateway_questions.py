"""explain and what-if through the gateway: the scheduler's own answers, and what a caller sees."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

import httpx
import pytest

from gangline_gateway.followed import Copies
from gangline_gateway.live import Live
from gangline_gateway.live_view import LiveView
from gangline_gateway.scheduler_questions import AT_ONCE, NoAnswerError, SchedulerQuestions
from gangline_gateway.tail import Tail
from gangline_scheduler.core.state import State
from gangline_schemas.gpu_prices import GpuPrices
from gangline_schemas.job import JobSpec
from support.builders.gateway import GatewayHarness, bearer, job, served

NLP, VISION, ADMIN, SERVICE = bearer("nlp"), bearer("vision"), bearer("admin"), bearer("svc")
WHAT_IF = "/v1/what-if"


@pytest.fixture(scope="module")
def harness(tmp_path_factory: pytest.TempPathFactory) -> GatewayHarness:
    made = GatewayHarness(tmp_path_factory.mktemp("gateway"))
    made.context = replace(made.context, prices=GpuPrices.of({"cpu": 1.5}))
    return made


@pytest.fixture(scope="module")
def client(harness: GatewayHarness) -> Iterator[httpx.Client]:
    """A cluster of 4 GPUs; vision runs on 3 of them for two hours, and waits with 2 more."""
    with served(harness) as found:
        for team in ("nlp", "vision"):
            harness.configure(team)
        harness.join("n1", 4)
        for gpus in (3, 2):
            body = job("vision", gpus, expected_runtime_hours=2)
            assert found.post("/v1/training-jobs", json=body, headers=VISION).status_code == 201
        yield found


def submit(client: httpx.Client, gpus: int) -> str:
    answer = client.post("/v1/training-jobs", json=job("nlp", gpus, priority=90), headers=NLP)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["job_id"])


def test_a_job_that_fits_would_start_now_and_does(client: httpx.Client) -> None:
    answer = client.post(WHAT_IF, json=job("nlp", 1), headers=NLP)
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert (found["starts"], found["level"], found["preempts"]) == ("now", "node", [])
    assert found["nodes"] == [{"node_id": "n1", "gpus": 1, "indexes": [3]}]
    listed = client.get("/v1/training-jobs", headers=ADMIN).json()["jobs"]
    assert [entry["team"] for entry in listed] == ["vision", "vision"], "nothing was submitted"


def test_a_waiting_job_is_told_its_place_and_start(
    client: httpx.Client, harness: GatewayHarness
) -> None:
    job_id = submit(client, 2)
    path = f"/v1/training-jobs/{job_id}/explain"
    harness.wait(lambda: client.get(path, headers=NLP).json()["waits_for"])
    why = client.get(path, headers=NLP).json()
    assert why["code"] == "capacity"
    assert why["eta"] is not None
    waits = why["waits_for"]
    assert waits["position"] == 2
    assert waits["ahead"] == [{"job_id": None, "team": None, "gpus": 2}], "another team's job"
    assert (waits["gpus"]["wanted"], waits["gpus"]["free"]) == (2, 1)
    seen = client.get(path, headers=ADMIN).json()["waits_for"]["ahead"]
    assert [entry["team"] for entry in seen] == ["vision"]
    later = client.post(WHAT_IF, json=job("nlp", 4), headers=NLP).json()
    assert (later["starts"], later["waiting"]["position"]) == ("later", 2)
    assert later["start"] > why["since"]


def test_a_plan_has_the_team_s_gpus_and_the_price_of_an_hour(client: httpx.Client) -> None:
    found = client.post(WHAT_IF, json=job("nlp", 1), headers=NLP).json()
    assert found["price_per_hour"] == {"least": 1.5, "most": 1.5}
    assert found["quota"]["allocated"] == 0
    assert found["quota"]["limit"] == found["quota"]["ceiling"] == 8
    later = client.post(WHAT_IF, json=job("nlp", 4), headers=NLP).json()
    assert later["price_per_hour"] == {"least": 6.0, "most": 6.0}


def test_the_outlook_names_the_caller_s_jobs_alone(client: httpx.Client) -> None:
    queue = client.get("/v1/queue", headers=ADMIN).json()["queue"]
    vision = [entry["job_id"] for entry in queue if entry["team"] == "vision"]
    only = client.get("/v1/queue?team=vision", headers=ADMIN).json()
    assert [entry["job_id"] for entry in only["queue"]] == vision
    assert client.get("/v1/queue?team=vision", headers=NLP).json()["queue"] == []
    (shard,) = client.get("/v1/queue/outlook", headers=ADMIN).json()["shards"]
    assert [item["job_id"] for item in shard["starts"]] == [entry["job_id"] for entry in queue]
    (hidden,) = client.get("/v1/queue/outlook", headers=NLP).json()["shards"]
    assert [(item["team"], item["job_id"] is None) for item in hidden["starts"]] == [
        (entry["team"], False) if entry["team"] == "nlp" else (None, True) for entry in queue
    ]
    assert [item["start"] for item in hidden["starts"]] == [
        item["start"] for item in shard["starts"]
    ]


def test_what_quota_would_reject_never_starts(client: httpx.Client) -> None:
    found = client.post(WHAT_IF, json=job("nlp", 99), headers=NLP).json()
    assert (found["starts"], "99/8 GPUs" in found["message"]) == ("never", True)


def test_only_the_team_itself_may_ask(client: httpx.Client) -> None:
    refused = client.post(WHAT_IF, json=job("nlp", 1), headers=VISION)
    assert (refused.status_code, refused.json()["errors"][0]["field"]) == (403, "team")
    assert client.post(WHAT_IF, json=job("nlp", 1), headers=SERVICE).status_code == 403
    wrong = client.post(WHAT_IF, json=job("nlp", 0), headers=NLP)
    assert (wrong.status_code, wrong.json()["errors"][0]["field"]) == (422, "resources.cpus")


def test_while_the_scheduler_is_down_the_gateway_answers_from_its_log(tmp_path: Path) -> None:
    harness = GatewayHarness(tmp_path)
    with served(harness) as client:
        harness.configure("nlp")
        path = f"/v1/training-jobs/{submit(client, 2)}/explain"
        harness.wait(lambda: client.get(path, headers=NLP).json()["waits_for"])
        harness.end_deciders()
        why = client.get(path, headers=NLP).json()
        assert (why["code"], why["waits_for"]["position"]) == ("shape", 1)
        asked = client.post(WHAT_IF, json=job("nlp", 1), headers=NLP)
        assert (asked.status_code, asked.json()["starts"]) == (200, "never")


class Endless(SchedulerQuestions):
    """Its child processes never end by themselves."""

    def _apart(self, work: Callable[[], bytes]) -> bytes:
        def endless() -> bytes:
            while True:
                work()

        return super()._apart(endless)


def test_an_answer_that_takes_too_long_is_given_up_and_explain_goes_on(
    client: httpx.Client, harness: GatewayHarness
) -> None:
    path = f"/v1/training-jobs/{submit(client, 2)}/explain"
    harness.wait(lambda: client.get(path, headers=NLP).json()["waits_for"])
    kept = harness.context.scheduler
    object.__setattr__(harness.context, "scheduler", Endless(harness.tail, work_s=0.2))
    try:
        why = client.get(path, headers=NLP).json()
        away = client.post(WHAT_IF, json=job("nlp", 1), headers=NLP)
    finally:
        object.__setattr__(harness.context, "scheduler", kept)
    assert (why["waits_for"], why["code"]) == (None, "capacity")
    assert "took too long" in why["eta_note"]
    assert (away.status_code, away.headers["retry-after"]) == (503, "2")
    assert away.json()["type"].endswith(":no-answer")


def test_more_than_a_few_questions_at_a_time_must_come_again(
    harness: GatewayHarness,
) -> None:
    busy = SchedulerQuestions(harness.tail, work_s=30, wait_s=0.0)
    spec, now = JobSpec.model_validate(job("nlp", 1)), harness.context.clock()
    held = [busy._slots.acquire(blocking=False) for _ in range(AT_ONCE)]
    with pytest.raises(NoAnswerError, match="try again"):
        busy.what_if(spec, now)
    assert held == [True] * AT_ONCE
    for _ in held:
        busy._slots.release()
    assert busy.what_if(spec, now).gpus == 1


def test_a_log_that_cannot_be_followed_is_named(
    harness: GatewayHarness, client: httpx.Client
) -> None:
    asked = SchedulerQuestions(cast("Tail", Unfollowed()))
    kept = harness.context.scheduler
    object.__setattr__(harness.context, "scheduler", asked)
    try:
        away = client.post(WHAT_IF, json=job("nlp", 1), headers=NLP)
    finally:
        object.__setattr__(harness.context, "scheduler", kept)
    assert (away.status_code, "upgrade the gateway" in away.json()["detail"]) == (503, True)


class Unfollowed:
    """A tail whose scheduler is newer."""

    def view(self) -> LiveView:
        newer: Copies[State] = Copies(
            [], "the scheduler's log has a later event: upgrade the gateway"
        )
        return LiveView(Live(), newer, Copies([]))
