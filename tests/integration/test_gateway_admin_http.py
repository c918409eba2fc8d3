"""Over real HTTP: what admins change and approve, teams apart, bundles, what is away."""

from __future__ import annotations

import gzip
import hashlib
import http.client
from pathlib import Path
from typing import Any

import httpx
import pytest

from gangline_gateway.history_access import HistoryAccess
from gangline_schemas.checkpoint import code_key
from support.builders.gateway import GatewayHarness, job, served
from support.fixtures.gateway_http import (
    ADMIN,
    NLP,
    SERVICE,
    VISION,
    events,
    harness,
    http_client,
    problem,
    step,
    submit,
)

__all__ = ["harness", "http_client"]


APPROVALS = "/v1/data-approvals"
USE = {
    "snapshot": "corpus@xxh3-0f343b0931126a20f133d67c2b018a3b",
    "project": "assistants",
    "purpose": "model-training",
}


def test_teams_see_and_touch_only_their_own(http_client: httpx.Client) -> None:
    job_id = submit(http_client, NLP, gpus=59)
    refused = http_client.post("/v1/training-jobs", json=job("nlp"), headers=VISION)
    assert problem(refused, 403, "forbidden")["errors"][0]["field"] == "team"
    base = f"/v1/training-jobs/{job_id}"
    for path in ("", "/logs", "/checkpoints", "/events", "/explain"):
        answer = http_client.get(base + path, headers=VISION)
        problem(answer, 404, "not-found")
        assert job_id not in answer.text
    for path, body in (("/cancel", None), ("/priority", {"priority": 1})):
        problem(http_client.post(base + path, json=body, headers=VISION), 404, "not-found")
    run = f"/training-runs/{job_id}"
    for path in (f"{run}/metrics", f"/v1/runs/{job_id}/curves", f"/v1/runs/compare?run={job_id}"):
        problem(http_client.get(path, headers=VISION), 404, "not-found")
    restore = http_client.post(f"{run}/checkpoints/1/restore", headers=VISION)
    problem(restore, 404, "not-found")
    listed = http_client.get("/v1/training-jobs", headers=VISION).json()["jobs"]
    assert all(item["team"] == "vision" for item in listed)
    teams = http_client.get("/v1/teams", headers=VISION).json()["teams"]
    assert [team["team"] for team in teams] == ["vision"]
    queue = http_client.get("/v1/queue", headers=VISION).json()
    assert all(entry["team"] == "vision" for entry in queue["queue"])
    assert http_client.get(base, headers=SERVICE).status_code == 200
    problem(http_client.post(base + "/cancel", headers=SERVICE), 403, "forbidden")


def test_data_is_used_only_as_an_admin_approved_it(http_client: httpx.Client) -> None:
    fields = {name: value for name, value in USE.items() if name != "snapshot"}
    wanted = job(data_snapshot=USE["snapshot"], **fields)

    def post(body: dict[str, Any]) -> httpx.Response:
        return http_client.post("/v1/training-jobs", json=body, headers=NLP)

    refused = problem(post(wanted), 422, "rejected")
    assert refused["detail"].startswith(f"data_snapshot: {USE['snapshot']} is not approved for")
    for _ in range(2):
        answer = http_client.post(APPROVALS, json=USE, headers=ADMIN)
        assert (answer.status_code, answer.json()) == (200, USE | {"approved": True})
    [listed] = http_client.get(APPROVALS, headers=ADMIN).json()["approvals"]
    assert {name: listed[name] for name in USE} == USE
    assert listed["user"] == "root"
    others = http_client.get(APPROVALS, params={"snapshot": "other"}, headers=ADMIN).json()
    assert others == {"approvals": []}
    assert post(wanted).status_code == 201
    withdrawn = http_client.post(APPROVALS, json=USE | {"approve": False}, headers=ADMIN)
    assert withdrawn.json()["approved"] is False
    problem(post(wanted), 422, "rejected")
    unnamed = http_client.post(APPROVALS, json=USE | {"snapshot": "corpus"}, headers=ADMIN)
    assert unnamed.status_code == 422


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("PUT", "/v1/teams/nlp", {"gpu_limit": 1}),
        ("POST", "/v1/nodes/n/drain", {"drain": True}),
        ("GET", "/v1/events", None),
        ("GET", "/v1/data-approvals", None),
        ("POST", "/v1/data-approvals", USE),
    ],
)
def test_admins_routes_are_closed_to_others(
    http_client: httpx.Client, method: str, path: str, body: Any
) -> None:
    for who in (NLP, SERVICE):
        document = problem(
            http_client.request(method, path, json=body, headers=who), 403, "forbidden"
        )
        assert document["detail"] == "this needs a token with the role admin"


def test_teams_and_nodes_are_changed_by_admins(
    http_client: httpx.Client, harness: GatewayHarness
) -> None:
    body = {"gpu_limit": 16, "gpu_guarantee": 4, "borrow_limit": 2}
    for _ in range(2):
        answer = http_client.put("/v1/teams/speech", json=body, headers=ADMIN)
        assert answer.status_code == 200, answer.text
        assert answer.json() | body == answer.json()
    wrong = {"gpu_limit": 1, "gpu_guarantee": 4}
    answer = http_client.put("/v1/teams/speech", json=wrong, headers=ADMIN)
    (error,) = problem(answer, 422, "invalid")["errors"]
    assert error == {
        "field": "gpu_guarantee",
        "message": "gpu_guarantee (4) is above gpu_limit (1)",
    }
    orphan = {"gpu_limit": 16, "parent": "nobody"}
    document = problem(
        http_client.put("/v1/teams/speech", json=orphan, headers=ADMIN), 409, "refused"
    )
    assert "team 'speech': parent: there is no team 'nobody'" in document["detail"]
    child = {"gpu_limit": 8, "parent": "speech", "gpu_types": [{"gpu_type": "h100"}], "weight": 2.0}
    answer = http_client.put("/v1/teams/voices", json=child, headers=ADMIN).json()
    assert (answer["parent"], answer["depth"], answer["weight"]) == ("speech", 1, 2.0)
    assert answer["gpu_types"] == [{"gpu_type": "h100", "gpu_limit": None}]
    harness.join("drained", gpus=1)
    drains = (
        ({"drain": True}, "draining"),
        ({"drain": True, "move_jobs": False}, "cordoned"),
        ({"drain": False}, "ready"),
    )
    for body, status in drains:
        answer = http_client.post("/v1/nodes/drained/drain", json=body, headers=ADMIN)
        assert (answer.status_code, answer.json()["status"]) == (202, status)
    none = http_client.post("/v1/nodes/none/drain", json={"drain": True}, headers=ADMIN)
    problem(none, 404, "not-found")
    http_client.post("/v1/nodes/drained/drain", json={"drain": True}, headers=ADMIN)


def test_bundles_are_stored_once_under_their_digest(
    http_client: httpx.Client, harness: GatewayHarness
) -> None:
    content = gzip.compress(b"tar" * 1000)
    headers = {**NLP, "Content-Type": "application/gzip"}
    digest = hashlib.sha256(content).hexdigest()
    for status in (201, 200):
        answer = http_client.post(
            "/v1/code-bundles", params={"team": "nlp"}, content=content, headers=headers
        )
        assert answer.status_code == status
        assert answer.json() == {"digest": digest, "size_bytes": len(content)}
    assert harness.context.store is not None
    assert harness.context.store.get(code_key("nlp", digest)) == content
    other = http_client.post(
        "/v1/code-bundles", params={"team": "vision"}, content=content, headers=headers
    )
    problem(other, 403, "forbidden")
    typed = http_client.post(
        "/v1/code-bundles",
        params={"team": "nlp"},
        content=b"x",
        headers={**NLP, "Content-Type": "a/b"},
    )
    problem(typed, 415, "content-type")


def test_a_bundle_above_its_limit_is_refused_before_it_is_sent(http_client: httpx.Client) -> None:
    url = http_client.base_url
    connection = http.client.HTTPConnection(url.host, url.port or 80, timeout=20)
    connection.putrequest("POST", "/v1/code-bundles?team=nlp")
    for name, value in {**NLP, "Content-Type": "application/gzip"}.items():
        connection.putheader(name, value)
    connection.putheader("Content-Length", str(10 << 30))
    connection.endheaders()
    answer = connection.getresponse()
    assert answer.status == 413
    connection.close()


def test_what_is_away_is_told_and_the_rest_goes_on(tmp_path: Path) -> None:
    def away() -> Any:
        raise ConnectionRefusedError

    harness = GatewayHarness(tmp_path, HistoryAccess(away))
    with served(harness) as client:
        harness.configure("nlp")
        job_id = submit(client)
        answer = client.get("/v1/runs", headers=NLP)
        problem(answer, 503, "history-away")
        assert int(answer.headers["retry-after"]) > 0
        assert client.get(f"/v1/training-jobs/{job_id}", headers=NLP).status_code == 200
        problem(client.get("/v1/training-jobs/unknown", headers=NLP), 503, "history-away")
        path = f"/training-runs/{job_id}/metrics"
        harness.say(step(job_id, 1), job_id, job_id)
        with client.stream("GET", path, headers=NLP) as stream:
            assert [next(events(stream.iter_lines()))[1]] == ["history"]
        harness.broker.down = True
        lost = client.post("/v1/training-jobs", json=job(), headers=NLP)
        problem(lost, 503, "bus-away")
        assert client.get("/v1/training-jobs", headers=NLP).status_code == 200
        harness.broker.down = False
        harness.failures.clear()


def test_without_a_decision_in_time_the_job_is_pending_and_safe(tmp_path: Path) -> None:
    harness = GatewayHarness(tmp_path, deciding=False)
    with served(harness) as client:
        headers = {**NLP, "Idempotency-Key": "k"}
        first = client.post("/v1/training-jobs", json=job(), headers=headers)
        assert (first.status_code, first.json()["state"]) == (201, "pending")
        assert first.json()["reason"] == "waits for admission"
        again = client.post("/v1/training-jobs", json=job(), headers=headers)
        assert (again.status_code, again.json()["job_id"]) == (200, first.json()["job_id"])
        why = client.get(f"/v1/training-jobs/{first.json()['job_id']}/explain", headers=NLP)
        assert why.json()["code"] == "admission"
