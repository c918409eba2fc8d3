"""explain and what-if through the gateway: the scheduler's own answers, and what a caller sees."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from gangline_gateway.scheduler_door import SchedulerDoor
from gateway_scene import GatewayScene, bearer, job, served

NLP, VISION, ADMIN, SERVICE = bearer("nlp"), bearer("vision"), bearer("admin"), bearer("svc")
WHAT_IF = "/v1/what-if"


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> GatewayScene:
    return GatewayScene(tmp_path_factory.mktemp("gateway"))


@pytest.fixture(scope="module")
def client(scene: GatewayScene) -> Iterator[httpx.Client]:
    """A cluster of 4 GPUs; vision runs on 3 of them for two hours, and waits with 2 more."""
    with served(scene) as found:
        for team in ("nlp", "vision"):
            scene.configure(team)
        scene.join("n1", 4)
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
    client: httpx.Client, scene: GatewayScene
) -> None:
    job_id = submit(client, 2)
    path = f"/v1/training-jobs/{job_id}/explain"
    scene.wait(lambda: client.get(path, headers=NLP).json()["waits_for"])
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


def test_what_quota_would_reject_never_starts(client: httpx.Client) -> None:
    found = client.post(WHAT_IF, json=job("nlp", 99), headers=NLP).json()
    assert (found["starts"], "99/8 GPUs" in found["message"]) == ("never", True)


def test_only_the_team_itself_may_ask(client: httpx.Client) -> None:
    refused = client.post(WHAT_IF, json=job("nlp", 1), headers=VISION)
    assert (refused.status_code, refused.json()["errors"][0]["field"]) == (403, "team")
    assert client.post(WHAT_IF, json=job("nlp", 1), headers=SERVICE).status_code == 403
    wrong = client.post(WHAT_IF, json=job("nlp", 0), headers=NLP)
    assert (wrong.status_code, wrong.json()["errors"][0]["field"]) == (422, "resources.gpus")


def test_while_the_scheduler_is_away_explain_goes_on_and_what_if_says_so(tmp_path: Path) -> None:
    scene = GatewayScene(tmp_path)
    nobody = SchedulerDoor(["http://127.0.0.1:9"], "t", answer_s=1.0)
    object.__setattr__(scene.gate, "scheduler", nobody)
    with served(scene) as client:
        scene.configure("nlp")
        path = f"/v1/training-jobs/{submit(client, 2)}/explain"
        scene.wait(lambda: client.get(path, headers=NLP).json()["eta_note"])
        why = client.get(path, headers=NLP).json()
        assert (why["code"], why["eta"], why["waits_for"]) == ("shape", None, None)
        assert "does not answer" in why["eta_note"]
        away = client.post(WHAT_IF, json=job("nlp", 1), headers=NLP)
        assert (away.status_code, away.headers["retry-after"]) == (503, "2")
        assert away.json()["type"].endswith(":scheduler-away")


def test_one_that_does_not_answer_is_passed_over(client: httpx.Client, scene: GatewayScene) -> None:
    leader = scene.door.address.url
    door = SchedulerDoor(["http://127.0.0.1:9", leader], "svc-token", answer_s=20.0)
    assert client.get("/v1/queue", headers=ADMIN).status_code == 200
    assert door.explain("nobody") is None
