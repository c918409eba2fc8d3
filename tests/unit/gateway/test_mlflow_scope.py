"""A job's token reaches the job's own run and what the job makes, and nothing else."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import parse_qs

import pytest

from gangline_gateway.mlflow_routes import Refused
from gangline_gateway.mlflow_scope import JobScope, narrow
from gangline_schemas.mlflow_workspace import family_of, mlflow_run_id

JOB = JobScope("train-0a1b2c3d4e", 2, "nlp")
OWN = mlflow_run_id(JOB.job_id)
CHILD = family_of(JOB.job_id) + "0" * 16
OTHER = mlflow_run_id("train-another")
MODEL, THEIRS = f"m-{CHILD}", f"m-{OTHER}"
API = "/api/2.0/mlflow"
FILES = "/api/2.0/mlflow-artifacts/artifacts"
POINT = {"key": "loss", "value": 0.5, "timestamp": 1, "step": 2}


def sent(method: str, path: str, body: Any = None, query: str = "", job: JobScope = JOB) -> Any:
    """The body that MLflow gets, or the query."""
    passed = narrow(method, path, query, job)
    if passed.rewrite is None:
        return passed.query
    return json.loads(passed.rewrite(json.dumps(body).encode()))


def refusal(method: str, path: str, body: Any = None, query: str = "") -> Refused:
    with pytest.raises(Refused) as found:
        sent(method, path, body, query)
    return found.value


@pytest.mark.parametrize("run_id", [OWN, CHILD])
def test_own_runs_are_read_and_written(run_id: str) -> None:
    both = {"run_id": run_id, "run_uuid": run_id}
    assert sent("GET", f"{API}/runs/get", query=f"run_uuid={run_id}&run_id={run_id}")
    assert sent("GET", f"{API}/metrics/get-history", query=f"run_id={run_id}&metric_key=a%2Fb")
    assert sent("POST", f"{API}/runs/log-metric", {**both, **POINT}) == {**both, **POINT}
    batch = {"run_id": run_id, "metrics": [{**POINT, "run_id": run_id, "model_id": MODEL}]}
    assert sent("POST", f"{API}/runs/log-batch", batch) == batch
    update = {**both, "status": "FINISHED", "end_time": 5}
    assert sent("POST", f"{API}/runs/update", update) == update


@pytest.mark.parametrize(
    ("method", "path", "body", "query"),
    [
        ("GET", f"{API}/runs/get", None, f"run_id={OTHER}"),
        ("GET", f"{API}/runs/get", None, f"run_id={OWN}&run_uuid={OTHER}"),
        ("GET", f"{API}/metrics/get-history", None, f"run_id={OTHER}&metric_key=loss"),
        ("GET", f"{API}/artifacts/list", None, f"run_uuid={OTHER}"),
        ("POST", f"{API}/runs/log-metric", {"run_id": OTHER, **POINT}, ""),
        ("POST", f"{API}/runs/log-metric", {"run_id": OWN, "run_uuid": OTHER, **POINT}, ""),
        ("POST", f"{API}/runs/log-batch", {"run_id": OWN, "metrics": [{"run_id": OTHER}]}, ""),
        ("POST", f"{API}/runs/log-batch", {"run_id": OWN, "metrics": [{"model_id": THEIRS}]}, ""),
        ("POST", f"{API}/runs/update", {"run_id": OTHER, "status": "KILLED"}, ""),
        ("POST", f"{API}/runs/outputs", {"run_id": OWN, "models": [{"model_id": THEIRS}]}, ""),
        ("POST", f"{API}/runs/log-batch", {"run_id": CHILD.upper()}, ""),
        ("POST", f"{API}/runs/log-batch", {"run_id": CHILD[:-1]}, ""),
        ("POST", f"{API}/runs/log-batch", {"run_id": [OWN]}, ""),
        ("POST", f"{API}/logged-models", {"experiment_id": "1", "source_run_id": OTHER}, ""),
        ("POST", f"{API}/logged-models", {"experiment_id": "1"}, ""),
        ("GET", f"{API}/logged-models/{THEIRS}", None, ""),
        ("PATCH", f"{API}/logged-models/{THEIRS}", {"status": "LOGGED_MODEL_READY"}, ""),
        ("PATCH", f"{API}/logged-models/{MODEL}", {"model_id": THEIRS}, ""),
        ("PUT", f"{FILES}/1/{OTHER}/artifacts/a.txt", None, ""),
        ("PUT", f"{FILES}/workspaces/vision/1/{OWN}/artifacts/a.txt", None, ""),
        ("GET", f"{FILES}/workspaces/nlp/1/models/{THEIRS}/artifacts/MLmodel", None, ""),
        ("GET", f"{FILES}/{OWN}/1/{OTHER}/artifacts/a.txt", None, ""),
        ("GET", FILES, None, f"path=workspaces/nlp/1/{OTHER}/artifacts"),
        ("GET", FILES, None, ""),
    ],
)  # fmt: skip
def test_runs_of_others_are_refused(method: str, path: str, body: Any, query: str) -> None:
    assert refusal(method, path, body, query).status == 403


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", f"{API}/runs/delete"), ("POST", f"{API}/runs/restore"),
        ("POST", f"{API}/experiments/delete"), ("POST", f"{API}/experiments/update"),
        ("POST", f"{API}/experiments/search"), ("DELETE", f"{API}/registered-models/delete"),
        ("POST", f"{API}/registered-models/alias"), ("GET", f"{API}/registered-models/search"),
        ("DELETE", f"{API}/logged-models/{MODEL}"),
        ("DELETE", f"{API}/logged-models/{MODEL}/tags/a"),
        ("DELETE", f"{FILES}/1/{OWN}/artifacts/a.txt"), ("POST", f"{API}/traces/search"),
        ("GET", "/api/3.0/mlflow/workspaces"), ("POST", "/graphql"), ("GET", "/"),
        ("GET", f"/get-artifact?run_uuid={OWN}"), ("POST", "/ajax-api/2.0/mlflow/runs/log-metric"),
        ("PUT", f"{API}/runs/get"), ("GET", f"{API}/runs/log-batch"), ("POST", "/v1/traces"),
        ("GET", f"{API}/metrics/get-history-bulk"), ("POST", f"{API}/runs/never-heard-of"),
        ("HEAD", f"{API}/runs/get"), ("POST", "/api/2.0/mlflow-artifacts/mpu/create/1"),
    ],
)  # fmt: skip
def test_other_routes_are_refused(method: str, path: str) -> None:
    assert refusal(method, path, {"run_id": OWN}).status == 403


@pytest.mark.parametrize(
    "body",
    [
        b"", b"[]", b"\xff", b'"{}"', b'{"runId": "x"}', b'{"run_id": "x", "more": 1}',
        json.dumps({"run_id": OWN, "metrics": [{"runId": OTHER}]}).encode(),
        json.dumps({"run_id": OWN, "tags": {"key": "a"}}).encode(),
        json.dumps({"run_id": OWN, "tags": [{"key": 1}]}).encode(),
    ],
)  # fmt: skip
def test_another_spelling_is_refused(body: bytes) -> None:
    passed = narrow("POST", f"{API}/runs/log-batch", "", JOB)
    assert passed.rewrite is not None
    with pytest.raises(Refused) as found:
        passed.rewrite(body)
    assert found.value.status == 400


def test_mlflow_sees_the_value_that_was_checked() -> None:
    passed = narrow("POST", f"{API}/runs/log-metric", "", JOB)
    assert passed.rewrite is not None
    body = f'{{"run_id": "{OTHER}", "key": "loss", "run_id": "{OWN}"}}'
    assert passed.rewrite(body.encode()) == f'{{"run_id":"{OWN}","key":"loss"}}'.encode()
    twice = f"run_id={OWN}&run_id={OTHER}"
    assert refusal("GET", f"{API}/runs/get", query=twice).status == 400
    assert refusal("GET", f"{API}/runs/get", query=f"run_id={OWN}&runId={OTHER}").status == 400
    assert refusal("GET", f"{API}/runs/get").status == 400
    spaced = f"{FILES}/1/{OWN}/artifacts/a b?c%20d.txt"
    assert narrow("PUT", spaced, "", JOB).path.endswith("/a%20b%3Fc%2520d.txt")


@pytest.mark.parametrize("dots", ["..", "%2e%2e", "%252e%252e"])
def test_dots_are_refused(dots: str) -> None:
    path = f"{FILES}/1/{OWN}/artifacts/{dots}/{dots}/{OTHER}/artifacts/x"
    assert refusal("GET", path).status == 400
    query = f"path=1/{OWN}/artifacts/{dots}/{dots}/{OTHER}"
    assert refusal("GET", FILES, query=query).status == 400


def tags(body: dict[str, Any]) -> dict[str, str]:
    return {tag["key"]: tag["value"] for tag in body["tags"]}


@pytest.mark.parametrize("route", ["runs/create", "logged-models"])
def test_what_a_job_makes_is_the_job_s(route: str) -> None:
    body: dict[str, Any] = {"experiment_id": "1"}
    if route == "logged-models":
        body["source_run_id"] = CHILD
    own = {"mlflow.parentRunId": OWN, "gangline.job": JOB.job_id, "gangline.attempt": "2"}
    assert tags(sent("POST", f"{API}/{route}", body)) == own
    forged = [
        {"key": "gangline.job", "value": "train-another"},
        {"key": "gangline.attempt", "value": "1"},
        {"key": "gangline.state", "value": "succeeded"},
        {"key": "mlflow.parentRunId", "value": CHILD},
        {"key": "mine", "value": "x"},
    ]
    made = tags(sent("POST", f"{API}/{route}", {**body, "tags": forged}))
    assert made == {**own, "mlflow.parentRunId": CHILD, "mine": "x"}
    other = [{"key": "mlflow.parentRunId", "value": OTHER}]
    assert refusal("POST", f"{API}/{route}", {**body, "tags": other}).status == 403


@pytest.mark.parametrize(
    ("key", "value", "is_allowed"),
    [
        ("mine", "x", True), ("mlflow.note.content", "x", True), ("gangline.job", "x", False),
        ("gangline.state", "x", False), ("mlflow.parentRunId", OTHER, False),
        ("mlflow.parentRunId", OWN, True),
    ],
)  # fmt: skip
def test_a_job_changes_no_tag_of_the_platform(key: str, value: str, is_allowed: bool) -> None:
    one = {"run_id": CHILD, "key": key, "value": value}
    many = {"run_id": CHILD, "tags": [{"key": key, "value": value}]}
    for path, body in ((f"{API}/runs/set-tag", one), (f"{API}/runs/log-batch", many)):
        if is_allowed:
            assert sent("POST", path, body) == body
        else:
            assert refusal("POST", path, body).status == 403
    if not is_allowed and key != "mlflow.parentRunId":
        assert (
            refusal("POST", f"{API}/runs/delete-tag", {"run_id": CHILD, "key": key}).status == 403
        )


@pytest.mark.parametrize("asked", ["", f"filter=run_id+%3D+%27{OWN}%27&max_results=10"])
def test_a_search_of_versions_finds_the_job_s_own(asked: str) -> None:
    """The step register looks for the version that an earlier attempt of its job made."""
    found = parse_qs(sent("GET", f"{API}/model-versions/search", query=asked))
    (words,) = found["filter"]
    assert words.startswith("tags.`gangline.job` = 'train-0a1b2c3d4e'")
    assert (f" AND run_id = '{OWN}'" in words) == bool(asked)
    more = refusal("GET", f"{API}/model-versions/search", query="filter=a&filter=b")
    assert more.status == 400


@pytest.mark.parametrize("route", ["runs/search", "logged-models/search"])
@pytest.mark.parametrize("asked", [None, "", "metrics.loss < 1", "metrics.loss < 1 --", "';"])
def test_searches_find_the_job_s_own(route: str, asked: str | None) -> None:
    own = f"tags.`gangline.job` = '{JOB.job_id}'"
    body = {"experiment_ids": ["1"]} | ({} if asked is None else {"filter": asked})
    found = sent("POST", f"{API}/{route}", body)["filter"]
    assert found == (f"{own} AND {asked}" if asked else own)


def test_a_job_chooses_an_experiment_of_the_team() -> None:
    by_name = sent("GET", f"{API}/experiments/get-by-name", query="experiment_name=nlp%2Fsft")
    assert parse_qs(by_name) == {"experiment_name": ["nlp/sft"]}
    body = {"name": "own", "tags": [{"key": "a", "value": "b"}]}
    assert sent("POST", f"{API}/experiments/create", body) == body
    with_folder = {"name": "own", "artifact_location": "s3://bucket"}
    assert refusal("POST", f"{API}/experiments/create", with_folder).status == 400


def test_files_of_own_runs_and_models_are_sent_as_they_are() -> None:
    for folder in (f"1/{OWN}", f"1/models/{MODEL}", f"workspaces/nlp/12/{CHILD}"):
        for method in ("PUT", "GET"):
            passed = narrow(method, f"{FILES}/{folder}/artifacts/a/b.txt", "", JOB)
            assert passed.rewrite is None
            assert passed.sends_file == (method == "PUT")
        listed = narrow("GET", FILES, f"path={folder}/artifacts/a", JOB)
        assert parse_qs(listed.query) == {"path": [f"{folder}/artifacts/a"]}


@pytest.mark.parametrize("folder", [f"workspaces/nlp/1/{OWN}", f"1/{CHILD}", f"1/models/{MODEL}"])
def test_presigned_urls_of_own_files(folder: str) -> None:
    top = "/api/2.0/mlflow-artifacts"
    place = f"{folder}/artifacts/a b"
    assert narrow("GET", f"{top}/presigned/{place}", "", JOB).path.endswith("/a%20b")
    for step in ("create", "complete", "abort"):
        asked = {"path": "/home/ada/model.bin", "upload_id": "u", "num_parts": 3, "parts": []}
        assert sent("POST", f"{top}/mpu/{step}/{place}", asked) == asked


@pytest.mark.parametrize(
    ("method", "route", "body", "query"),
    [
        ("GET", f"presigned/1/{OTHER}/artifacts/a", None, ""),
        ("GET", f"presigned/workspaces/vision/1/{OWN}/artifacts/a", None, ""),
        ("POST", f"presigned/1/{OWN}/artifacts/a", {}, ""),
        ("GET", f"mpu/create/1/{OWN}/artifacts/a", None, ""),
        ("POST", f"mpu/create/1/{OTHER}/artifacts", {"path": "x"}, ""),
        ("POST", f"mpu/create/1/{OWN}/artifacts", {"path": "x", "more": 1}, ""),
        ("POST", f"mpu/create/1/{OWN}/artifacts", {"path": "x"}, "path=y"),
        ("POST", f"mpu/take/1/{OWN}/artifacts", {"path": "x"}, ""),
    ],
)
def test_presigned_urls_of_others_are_refused(
    method: str, route: str, body: Any, query: str
) -> None:
    refusal(method, f"/api/2.0/mlflow-artifacts/{route}", body, query)


def test_a_version_is_made_of_the_jobs_own_artifacts_and_names_the_job() -> None:
    assert sent("POST", f"{API}/registered-models/create", {"name": "m"}) == {"name": "m"}
    files = f"mlflow-artifacts:/workspaces/nlp/3/{OWN}/artifacts/model"
    for source in (files, f"runs:/{CHILD}/model"):
        tags = [{"key": "kind", "value": "x"}, {"key": "gangline.registration", "value": "1"}]
        body = {"name": "m", "source": source, "run_id": OWN, "tags": tags}
        made = sent("POST", f"{API}/model-versions/create", body)
        assert {one["key"]: one["value"] for one in made["tags"]} == {
            "kind": "x", "gangline.job": JOB.job_id, "gangline.attempt": "2",
        }  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [
        {"run_id": OTHER},
        {"run_id": None},
        {"source": f"runs:/{OTHER}/model"},
        {"source": f"mlflow-artifacts:/workspaces/vision/3/{OWN}/artifacts/model"},
        {"source": f"mlflow-artifacts:/3/{OTHER}/artifacts/model"},
        {"source": f"mlflow-artifacts:/3/{OWN}/artifacts/../../4/x"},
        {"source": f"mlflow-artifacts://host/3/{OWN}/artifacts/model"},
        {"source": "models:/other/1"},
        {"source": "s3://bucket/model"},
        {"source": "/etc"},
    ],
)
def test_versions_of_anything_else_are_refused(change: dict[str, Any]) -> None:
    body = {"name": "m", "source": f"runs:/{OWN}/model", "run_id": OWN, **change}
    assert refusal("POST", f"{API}/model-versions/create", body).status == 403
