"""Each job is an MLflow run, and what its program logs with common libraries are its children."""

from __future__ import annotations

import os
import signal
import uuid
from pathlib import Path
from typing import Any

import httpx
import pytest

from gangline_schemas.events.requests import JobSubmitted
from gangline_schemas.mlflow_workspace import mlflow_run_id
from support.builders.held_job import plain_spec
from support.fixtures.platform import RunningPlatform
from support.harnesses import mlflow_script
from support.harnesses.log_watch import LogWatch
from support.waiting import wait_until

mlflow = pytest.importorskip("mlflow")

SCRIPT = mlflow_script.__file__
API = "/mlflow/api/2.0/mlflow"


@pytest.fixture
def client(platform: RunningPlatform, monkeypatch: pytest.MonkeyPatch) -> Any:
    """MLflow's client as a user of team default has it."""
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", platform.client.token)
    uri = f"{platform.client.url}/mlflow/teams/default"
    return mlflow.MlflowClient(tracking_uri=uri, registry_uri=uri)


def submit(watch: LogWatch, kind: str, argument: str = "", **fields: Any) -> str:
    job_id = f"{kind}-{uuid.uuid4().hex[:8]}"
    command = ["python", SCRIPT, kind, argument]
    more = {"project": "sft", "hyperparameters": {"lr": 0.5, "model": {"layers": 2}}, "seed": 7}
    spec = plain_spec(kind, "default", 1, command=command, **{**more, **fields})
    watch.publish(JobSubmitted(job_id=job_id, spec=spec, user="ada"), job_id)
    return job_id


def succeeded(watch: LogWatch, job_id: str) -> None:
    found = watch.wait_state(job_id, "succeeded", "failed").data
    lines = [line.text for s in watch.of("worker.log", job_id) for line in s.data.lines]
    assert found.state == "succeeded", "\n".join([found.reason, *lines[-40:]])


def own_run(client: Any, job_id: str) -> Any:
    """The job's run, once the end of the job is in it."""
    wait_until("its end", lambda: client.get_run(mlflow_run_id(job_id)).info.end_time is not None)
    return client.get_run(mlflow_run_id(job_id))


def children(client: Any, job_id: str) -> list[Any]:
    experiments = [found.experiment_id for found in client.search_experiments()]
    return list(
        client.search_runs(experiments, f"tags.`mlflow.parentRunId` = '{mlflow_run_id(job_id)}'")
    )


def test_scikit_learn_logs_by_itself_and_the_job_is_the_parent(
    watch: LogWatch, client: Any
) -> None:
    job_id = submit(watch, "sklearn")
    succeeded(watch, job_id)
    run = own_run(client, job_id)
    assert run.info.status == "FINISHED"
    assert run.info.run_name == job_id
    assert run.data.params == {"lr": "0.5", "model": '{"layers": 2}', "seed": "7"}
    expected = {"state": "succeeded", "attempt": "1", "gpus": "1", "gpu_type": "cpu", "seed": "7"}
    assert {name: run.data.tags[f"gangline.{name}"] for name in expected} == expected
    assert run.data.tags["mlflow.user"] == "ada"
    assert run.data.metrics["gangline/restarts"] == 0
    assert run.data.metrics["gangline/gpu_seconds"] > 0
    assert client.get_experiment(run.info.experiment_id).name == "default/sft"
    (child,) = children(client, job_id)
    assert child.info.experiment_id == run.info.experiment_id
    assert child.data.tags["gangline.job"] == job_id
    assert child.data.params["C"] == "0.5"
    assert child.data.metrics["training_accuracy_score"] == 1.0
    (model,) = child.outputs.model_outputs
    assert client.get_logged_model(model.model_id).source_run_id == child.info.run_id
    points = client.get_metric_history(run.info.run_id, "gangline/gpu_seconds")
    assert [point.value for point in points] == [run.data.metrics["gangline/gpu_seconds"]]


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["trainer", "lightning", "keras"])
def test_the_loggers_of_other_libraries_work_unchanged(
    watch: LogWatch, client: Any, kind: str
) -> None:
    job_id = submit(watch, kind)
    succeeded(watch, job_id)
    (child,) = children(client, job_id)
    assert child.info.status == "FINISHED"
    assert child.data.tags["gangline.attempt"] == "1"
    assert len(client.get_metric_history(child.info.run_id, "loss")) == 4


def test_a_script_chooses_its_experiment_and_nests_runs(watch: LogWatch, client: Any) -> None:
    name = f"own-{uuid.uuid4().hex[:6]}"
    job_id = submit(watch, "study", name)
    succeeded(watch, job_id)
    (outer,) = children(client, job_id)
    assert client.get_experiment(outer.info.experiment_id).name == name
    inner = client.search_runs(
        [outer.info.experiment_id], f"tags.`mlflow.parentRunId` = '{outer.info.run_id}'"
    )
    assert {run.info.run_name for run in inner} == {"trial-0", "trial-1", "trial-2"}
    assert {run.data.tags["gangline.job"] for run in inner} == {job_id}
    stored = client.download_artifacts(outer.info.run_id, "best.txt")
    assert Path(stored).read_text() == "trial-1 of 3"


def test_the_job_s_run_is_the_program_s_own_on_request(
    watch: LogWatch, client: Any, tmp_path: Path
) -> None:
    (tmp_path / "go").touch()
    job_id = submit(watch, "hold", str(tmp_path), mlflow={"run_id": True})
    succeeded(watch, job_id)
    assert (tmp_path / "1.run").read_text() == mlflow_run_id(job_id)
    run = own_run(client, job_id)
    assert run.data.metrics["loss"] == 0.5
    assert run.info.status == "FINISHED"
    assert children(client, job_id) == []


def status(platform: RunningPlatform, token: str, method: str, path: str, **more: Any) -> int:
    """The status of a request with a token."""
    headers = {"Authorization": f"Bearer {token}"}
    url = f"{platform.client.url}{path}"
    return httpx.request(method, url, headers=headers, timeout=60, **more).status_code


def test_a_token_is_good_for_its_attempt_and_its_runs_alone(
    platform: RunningPlatform, watch: LogWatch, client: Any, tmp_path: Path
) -> None:
    job_id = submit(watch, "hold", str(tmp_path), restart={"max": 3})
    wait_until("the first attempt", (tmp_path / "1.run").exists)
    first, run = (tmp_path / "1.token").read_text(), (tmp_path / "1.run").read_text()
    other = client.create_run(client.create_experiment(f"x-{uuid.uuid4().hex[:6]}")).info.run_id

    def asks(token: str) -> list[int]:
        log = {"run_id": run, "key": "m", "value": 1.0, "timestamp": 1, "step": 1}
        return [
            status(platform, token, "GET", f"{API}/runs/get?run_id={run}"),
            status(platform, token, "POST", f"{API}/runs/log-metric", json=log),
            status(platform, token, "GET", f"{API}/runs/get?run_id={mlflow_run_id(job_id)}"),
        ]

    assert asks(first) == [200, 200, 200]
    assert status(platform, first, "GET", f"{API}/runs/get?run_id={other}") == 403
    point = {"run_id": other, "key": "m", "value": 1.0, "timestamp": 1}
    assert status(platform, first, "POST", f"{API}/runs/log-metric", json=point) == 403
    assert status(platform, first, "POST", f"{API}/runs/delete", json={"run_id": run}) == 403
    elsewhere = f"/mlflow/teams/research/api/2.0/mlflow/runs/get?run_id={run}"
    assert status(platform, first, "GET", elsewhere) == 403
    assert status(platform, first, "GET", "/v1/training-jobs") == 401
    forged = first.replace("-1-", "-2-", 1)
    assert status(platform, forged, "GET", f"{API}/runs/get?run_id={run}") == 401

    (started,) = watch.of("worker.started", job_id) or [
        watch.wait_for(lambda s: s.type == "worker.started" and s.data.job_id == job_id)
    ]
    os.kill(started.data.pid, signal.SIGKILL)
    wait_until("the second attempt", (tmp_path / "2.run").exists)
    second = (tmp_path / "2.token").read_text()
    assert asks(first) == [403, 403, 403]
    assert asks(second) == [200, 200, 200]
    (tmp_path / "go").touch()
    succeeded(watch, job_id)
    wait_until("the end of the token", lambda: asks(second) == [403, 403, 403])
    parent = own_run(client, job_id)
    assert parent.data.metrics["gangline/restarts"] == 1
    assert parent.data.metrics["gangline/incidents"] == 1
    found = {child.data.tags["gangline.attempt"]: child for child in children(client, job_id)}
    assert {name: child.info.status for name, child in found.items()} == {
        "1": "FAILED",
        "2": "FINISHED",
    }
    assert found["1"].info.run_id == run


def test_the_token_is_in_no_topic_file_or_answer(
    platform: RunningPlatform, watch: LogWatch, tmp_path: Path
) -> None:
    from support.harnesses import leak_search

    (tmp_path / "go").touch()
    job_id = submit(watch, "hold", str(tmp_path))
    succeeded(watch, job_id)
    token = (tmp_path / "1.token").read_text()
    assert leak_search.in_topics(platform.kafka, token) == set()
    assert leak_search.in_files(platform.data_dir, token) == []
    assert leak_search.in_clickhouse(platform.client, token) == []
    assert leak_search.at_endpoints(platform.data_dir, token) == []
