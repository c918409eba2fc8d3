"""The gateway over real HTTP, with real quota and scheduler deciding behind the bus in memory."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from gangline_bus.codec import decode
from gangline_schemas.catalog import Topic
from gangline_schemas.events.requests import JobSubmitted
from support.builders.gateway import GatewayHarness, job
from support.builders.rest_document import rest_document
from support.fixtures.gateway_http import (
    ADMIN,
    NLP,
    PROBLEM,
    VISION,
    harness,
    http_client,
    problem,
    submit,
)

__all__ = ["harness", "http_client"]


def every_operation() -> list[tuple[str, str]]:
    found = [("GET", "/v1/openapi.json"), ("GET", "/no-such-route")]
    for path, operations in rest_document()["paths"].items():
        text = path.replace("{epoch}", "1")
        for name in ("job_id", "run_id", "node_id", "team"):
            text = text.replace(f"{{{name}}}", "x")
        found += [(method.upper(), text) for method in operations]
    return found


def test_no_route_answers_without_a_token_or_to_a_wrong_name(http_client: httpx.Client) -> None:
    operations = every_operation()
    assert len(operations) >= 24
    for operation in operations:
        refuses_strangers(http_client, *operation)


def refuses_strangers(client: httpx.Client, method: str, path: str) -> None:
    """Without a token, with a wrong one, and asked by another name or from another page."""
    problem(client.request(method, path), 401, "no-token")
    for wrong in ("Bearer wrong", "Basic cm9vdDphZG1pbg==", "Bearer", "Token admin-token"):
        answer = client.request(method, path, headers={"Authorization": wrong})
        problem(answer, 401, "no-token")
        assert answer.headers["www-authenticate"].startswith("Bearer")
    host = {**ADMIN, "Host": "evil.example"}
    problem(client.request(method, path, headers=host), 421, "wrong-host")
    origin = {**ADMIN, "Origin": "http://evil.example"}
    problem(client.request(method, path, headers=origin), 403, "wrong-origin")


def test_a_page_of_the_gateway_itself_may_ask(http_client: httpx.Client) -> None:
    own = str(http_client.base_url).rstrip("/")
    answer = http_client.get("/v1/whoami", headers={**NLP, "Origin": own})
    assert answer.json()["name"] == "ada"


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        (f'"hyperparameters": {{"steps": {10**400}}}', "hyperparameters"),
        ('"hyperparameters": {"clip": NaN}', "hyperparameters"),
        ('"hyperparameters": {"clip": -Infinity}', "hyperparameters"),
        (f'"hyperparameters": {{"a": {"[" * 197}{"]" * 197}}}', "hyperparameters"),
        ('"hyperparameters": {"\\ud800": 1}', "hyperparameters"),
        ('"resources": {"gpus": 1, "cpus_per_gpu": 1e-310}', "resources.cpus_per_gpu"),
        ('"expected_runtime_hours": 1e-9', "expected_runtime_hours"),
        ('"max_runtime_hours": Infinity', "max_runtime_hours"),
    ],
)
def test_a_job_that_a_service_could_not_bear_is_refused_and_lists_stay(
    http_client: httpx.Client, fields: str, named: str
) -> None:
    body = f"{json.dumps(job())[:-1]}, {fields}}}"
    headers = {**NLP, "content-type": "application/json"}
    answer = http_client.post("/v1/training-jobs", content=body, headers=headers)
    found = problem(answer, 422, "invalid")
    assert {error["field"] for error in found["errors"]} == {named}
    for who in (NLP, VISION, ADMIN):
        assert http_client.get("/v1/training-jobs", headers=who).status_code == 200


def test_a_submission_is_answered_with_what_was_decided(
    http_client: httpx.Client, harness: GatewayHarness
) -> None:
    answer = http_client.post("/v1/training-jobs", json=job(gpus=60), headers=NLP)
    assert answer.status_code == 201
    found = answer.json()
    assert answer.headers["location"] == f"/v1/training-jobs/{found['job_id']}"
    assert (found["state"], found["user"]) == ("pending", "ada")
    job_id = found["job_id"]
    harness.wait(lambda: harness.tail.query(lambda live: live.details(job_id).waiting))
    why = http_client.get(f"/v1/training-jobs/{job_id}/explain", headers=NLP).json()
    assert why["code"] == "shape"
    assert why["evidence"]["gpus_wanted"] == 60
    assert http_client.get(f"/v1/training-jobs/{job_id}", headers=NLP).json()["waiting"]


def test_camel_case_bodies_are_accepted_and_answered_in_snake_case(
    http_client: httpx.Client,
) -> None:
    body = {**job(gpus=60), "codeRef": "3f2c1ab", "checkpointPolicy": {"intervalMinutes": 5}}
    found = http_client.post("/v1/training-jobs", json=body, headers=NLP).json()
    assert found["spec"]["code_ref"] == "3f2c1ab"
    assert found["spec"]["checkpoint"]["interval_minutes"] == 5


def test_the_same_key_is_the_same_job(http_client: httpx.Client, harness: GatewayHarness) -> None:
    headers = {**NLP, "Idempotency-Key": "night-run-1"}

    def send(_: int) -> httpx.Response:
        return http_client.post("/v1/training-jobs", json=job(gpus=61), headers=headers)

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(send, range(16)))
    assert sorted(answer.status_code for answer in answers) == [200] * 15 + [201]
    (job_id,) = {answer.json()["job_id"] for answer in answers}
    submitted = [
        decode(record).data for record in harness.broker.dump(harness.names.name(Topic.REQUESTS))
    ]
    ids = [item.job_id for item in submitted if isinstance(item, JobSubmitted)]
    assert ids.count(job_id) == 1
    for other in (job(gpus=62), job(gpus=61, name="another")):
        answer = http_client.post("/v1/training-jobs", json=other, headers=headers)
        problem(answer, 409, "key-reused")
    mine = http_client.post(
        "/training-runs",
        json=job("vision", 8),  # more than any node of the harness has: it waits
        headers={**VISION, "Idempotency-Key": "night-run-1"},
    )
    assert mine.json()["run_id"] != job_id


def test_what_can_never_run_is_rejected_with_numbers_and_stays_rejected(
    http_client: httpx.Client,
) -> None:
    headers = {**NLP, "Idempotency-Key": "too-big"}
    for _ in range(2):
        answer = http_client.post("/v1/training-jobs", json=job(gpus=100), headers=headers)
        assert "100/64" in problem(answer, 422, "rejected")["detail"]
    unknown = http_client.post("/v1/training-jobs", json=job("ghosts"), headers=ADMIN)
    assert "ghosts" in problem(unknown, 422, "rejected")["detail"]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (job(gpus=-1), "resources.gpus"),
        (job(team="No Team"), "team"),
        (job(checkpoint={"path": "../../etc"}), "checkpoint.path"),
        (job(env={"X": "y" * 70_000}), "env"),
        (job(resume_from="Not A Job"), "resume_from"),
        (job(env={"HF_TOKEN": "hf_" + "a" * 40}), "env"),
        (job(command=["x", "sk-" + "b" * 40]), "(body)"),
        ({**job(), "surprise": 1}, "surprise"),
        ([], "(body)"),
        (None, "(body)"),
    ],
)
def test_bad_bodies_are_refused_by_field_and_never_repeated(
    http_client: httpx.Client, body: Any, field: str
) -> None:
    answer = http_client.post("/v1/training-jobs", json=body, headers=NLP)
    found = problem(answer, 422, "invalid")
    assert field in {error["field"] for error in found["errors"]}, found
    for value in ("No Team", "../../etc", "Not A Job", "a" * 40, "b" * 40):
        assert value not in answer.text


@pytest.mark.parametrize(
    ("content", "statuses"),
    [
        (b"{", {422}),
        (b"\xff\xfe", {400, 422}),
        (b'{"name": NaN}', {422}),
        (b"[" * 200_000, {400, 422}),
        (b'{"name": "\\ud800"}', {422}),
        (b"", {422}),
    ],
)
def test_bytes_that_are_no_json_are_refused(
    http_client: httpx.Client, content: bytes, statuses: set[int]
) -> None:
    headers = {**NLP, "Content-Type": "application/json"}
    answer = http_client.post("/v1/training-jobs", content=content, headers=headers)
    assert answer.status_code in statuses, answer.text
    assert answer.headers["content-type"] == PROBLEM


def test_large_bodies_and_headers_are_cut_off(http_client: httpx.Client) -> None:
    large = json.dumps(job(env={"X": "y" * 10_000_000})).encode()
    headers = {**NLP, "Content-Type": "application/json"}
    answer = http_client.post("/v1/training-jobs", content=large, headers=headers)
    limit = problem(answer, 413, "too-large")["detail"]
    chunked = http_client.post(
        "/v1/training-jobs", content=iter([large[:700_000]] * 2), headers=headers
    )
    assert problem(chunked, 413, "too-large")["detail"] == limit
    many = http_client.get("/v1/whoami", headers={**NLP, "X-Filler": "z" * 100_000})
    problem(many, 431, "too-large")


def test_a_dry_run_submits_nothing(http_client: httpx.Client, harness: GatewayHarness) -> None:
    before = len(harness.broker.dump(harness.names.name(Topic.REQUESTS)))
    answer = http_client.post(
        "/v1/training-jobs", params={"dry_run": True}, json=job(gpus=100), headers=NLP
    )
    assert answer.status_code == 200
    assert "would exceed quota: 100/" in answer.json()["notes"][0]
    told = job(image="nvcr.io/pytorch:26.01")
    answer = http_client.post("/v1/training-jobs", params={"dry_run": True}, json=told, headers=NLP)
    assert "image: none of 0 nodes runs images" in answer.json()["notes"][0]
    told = job(strategy="deepspeed", command=["python", "-m", "gangline_worker.training"])
    answer = http_client.post("/v1/training-jobs", params={"dry_run": True}, json=told, headers=NLP)
    assert "strategy: the platform's trainer has no DeepSpeed engine" in answer.json()["notes"][0]
    assert answer.json()["rejected"]
    assert len(harness.broker.dump(harness.names.name(Topic.REQUESTS))) == before


def test_a_job_is_cancelled_and_reprioritized(
    http_client: httpx.Client, harness: GatewayHarness
) -> None:
    job_id = submit(http_client, gpus=58)
    base = f"/v1/training-jobs/{job_id}"
    for _ in range(2):
        answer = http_client.post(f"{base}/priority", json={"priority": 7}, headers=NLP)
        assert (answer.status_code, answer.json()["priority"]) == (202, 7)
    refused = http_client.post(f"{base}/priority", json={"priority": 101}, headers=NLP)
    assert problem(refused, 422, "invalid")["errors"][0]["field"] == "priority"
    assert http_client.post(f"{base}/cancel", headers=NLP).status_code == 202

    def state() -> str:
        found: str = http_client.get(base, headers=NLP).json()["state"]
        return found

    harness.wait(lambda: state() == "cancelled")
    problem(http_client.post(f"{base}/cancel", headers=NLP), 409, "ended")
    problem(http_client.post("/v1/training-jobs/none/cancel", headers=NLP), 404, "not-found")


def test_lists_are_paged_without_gap_or_repetition(http_client: httpx.Client) -> None:
    made = {submit(http_client, name=f"page-{index}", gpus=57) for index in range(7)}
    seen: list[str] = []
    cursor: str | None = None
    while True:
        params: dict[str, Any] = {"limit": 3, "name": "page-", "state": "pending"}
        if cursor:
            params["cursor"] = cursor
        page = http_client.get("/v1/training-jobs", params=params, headers=NLP).json()
        seen += [item["job_id"] for item in page["jobs"]]
        cursor = page["cursor"]
        if cursor is None:
            break
    assert len(seen) == len(set(seen)) == 7
    assert set(seen) == made
    times = [
        http_client.get(f"/v1/training-jobs/{j}", headers=NLP).json()["submitted_at"] for j in seen
    ]
    assert times == sorted(times, reverse=True)
    wrong = http_client.get("/v1/training-jobs", params={"cursor": "x"}, headers=NLP)
    problem(wrong, 422, "invalid")


def test_a_foreign_submission_is_listed_and_its_rejection_explained(
    http_client: httpx.Client, harness: GatewayHarness
) -> None:
    spec = JobSubmitted.model_validate({"job_id": "foreign-1", "spec": job(gpus=99)})
    harness.say(spec, "foreign-1")
    harness.wait(lambda: harness.tail.query(lambda live: live.details("foreign-1")))
    harness.wait(
        lambda: http_client.get("/v1/training-jobs/foreign-1", headers=NLP).json()["ended_at"]
    )
    found = http_client.get("/v1/training-jobs/foreign-1", headers=NLP).json()
    assert (found["state"], "99/64" in found["reason"]) == ("rejected", True)
