"""The genuine, unmodified MLflow client against our server, on PostgreSQL and on SQLite.

`make test` has SQLite in tests/e2e, where the platform's own server uses it; `make soak` here.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from gangline.local.kafka import EmbeddedKafka
from gangline_mlflow.front import server_info
from support.harnesses.mlflow_process import MlflowProcess, mlflow_server

mlflow = pytest.importorskip("mlflow")


@contextmanager
def client_of(server: MlflowProcess, team: str) -> Iterator[Any]:
    """MLflow's client as a user of the team has it."""
    own = {
        "MLFLOW_TRACKING_TOKEN": server.token,
        "MLFLOW_WORKSPACE": team,  # the gateway sets it for users
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "6",
    }
    before = {name: os.environ.get(name) for name in own}
    os.environ.update(own)
    mlflow.set_tracking_uri(server.url)
    try:
        yield mlflow.MlflowClient()
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@pytest.fixture
def client(server: MlflowProcess) -> Iterator[Any]:
    with client_of(server, "nlp") as found:
        yield found


def test_a_script_with_nested_runs(client: Any, tmp_path: Path) -> None:
    mlflow.set_experiment("nested")
    with mlflow.start_run(run_name="outer", tags={"kind": "study"}) as outer:
        mlflow.log_params({"lr": 0.1, "layers": 3})
        for number in range(2):
            with mlflow.start_run(run_name=f"inner-{number}", nested=True):
                mlflow.log_metric("loss", 1.0 + number, step=5)
        mlflow.log_metrics({"loss": 0.5, "accuracy": 0.75}, step=9)
        (tmp_path / "notes.txt").write_text("two trials")
        mlflow.log_artifact(str(tmp_path / "notes.txt"), "texts")
    run = client.get_run(outer.info.run_id)
    assert run.data.params == {"lr": "0.1", "layers": "3"}
    assert run.data.metrics == {"loss": 0.5, "accuracy": 0.75}
    assert run.info.status == "FINISHED"
    assert mlflow.artifacts.load_text(f"runs:/{run.info.run_id}/texts/notes.txt") == "two trials"
    children = mlflow.search_runs(
        filter_string=f"tags.`mlflow.parentRunId` = '{run.info.run_id}'",
        order_by=["metrics.loss DESC"],
        output_format="list",
    )
    assert [child.info.run_name for child in children] == ["inner-1", "inner-0"]


def test_searches_see_what_was_logged_just_before(client: Any) -> None:
    experiment = client.create_experiment("searched")
    for number in range(6):
        run = client.create_run(experiment, run_name=f"run-{number}")
        client.log_metric(run.info.run_id, "score", number / 10, step=1)
        found = client.search_runs(
            [experiment], "metrics.score >= 0", order_by=["metrics.score DESC"]
        )
        assert found[0].info.run_name == f"run-{number}"
        client.log_param(run.info.run_id, "size", number)
    found = client.search_runs([experiment], "metrics.score > 0.25 and params.size != '4'")
    assert {run.info.run_name for run in found} == {"run-3", "run-5"}
    page = client.search_runs([experiment], max_results=4)
    assert len(page) == 4
    assert len(client.search_runs([experiment], max_results=4, page_token=page.token)) == 2


def test_a_history_has_each_point_once_in_order_of_time(client: Any) -> None:
    run_id = client.create_run(client.create_experiment("history")).info.run_id
    for _ in range(2):  # a client that tries again
        for step, value in ((3, 1.0), (-2, math.nan), (3, 2.0), (2**62, math.inf)):
            client.log_metric(run_id, "loss", value, timestamp=1000 + abs(step) % 97, step=step)
    points = client.get_metric_history(run_id, "loss")
    seen = [(point.timestamp, point.step, point.value) for point in points]
    assert seen[:3] == [
        (1002, -2, pytest.approx(math.nan, nan_ok=True)),
        (1003, 3, 1),
        (1003, 3, 2),
    ]
    assert seen[3][1:] == (2**62, 1.7976931348623157e308)
    assert len(seen) == 4
    assert client.get_run(run_id).data.metrics["loss"] == 1.7976931348623157e308
    assert client.get_metric_history(run_id, "another") == []


def test_the_newest_value_is_that_of_the_largest_step(client: Any) -> None:
    run_id = client.create_run(client.create_experiment("newest")).info.run_id
    for step, value in ((1, 5.0), (7, 3.0), (4, 9.0)):
        client.log_metric(run_id, "loss", value, step=step)
    assert client.get_run(run_id).data.metrics == {"loss": 3.0}


def test_a_registry_with_aliases(client: Any) -> None:
    run_id = client.create_run(client.create_experiment("registry")).info.run_id
    client.create_registered_model("sft", description="a model")
    source = f"{client.get_run(run_id).info.artifact_uri}/model"
    for _ in range(2):
        client.create_model_version("sft", source, run_id)
    client.set_registered_model_alias("sft", "champion", "2")
    assert client.get_model_version_by_alias("sft", "champion").version == "2"
    versions = client.search_model_versions("name = 'sft'")
    assert {version.version for version in versions} == {"1", "2"}
    client.delete_registered_model_alias("sft", "champion")
    with pytest.raises(mlflow.exceptions.MlflowException, match="alias champion not found"):
        client.get_model_version_by_alias("sft", "champion")


def test_refusals_are_mlflows_own(client: Any) -> None:
    run_id = client.create_run(client.create_experiment("refused")).info.run_id
    refused = mlflow.exceptions.MlflowException
    with pytest.raises(refused, match="Names may only contain alphanumerics"):
        client.log_metric(run_id, "bad\nname", 1.0)
    with pytest.raises(refused, match=r"Run with id=0+ not found|Run '0+' not found"):
        client.log_metric("0" * 32, "loss", 1.0)
    with pytest.raises(refused, match="Invalid"):
        client.search_runs(["1"], "metrics.loss >< 1")
    with pytest.raises(refused, match="Invalid metric"):
        client.log_metric(run_id, "loss\n", 1.0)


def test_a_deleted_run_takes_no_more_metrics(client: Any) -> None:
    experiment = client.create_experiment("deleted")
    run_id, other = (client.create_run(experiment).info.run_id for _ in range(2))
    for run in (run_id, other):  # the lane knows them as active
        client.log_metric(run, "loss", 1.0, step=1)
    client.set_terminated(run_id)
    client.log_metric(run_id, "loss", 2.0, step=2)  # MLflow takes metrics of ended runs
    refused, not_active = mlflow.exceptions.MlflowException, "must be in the 'active' state"
    client.delete_run(run_id)
    with pytest.raises(refused, match=not_active):
        client.log_metric(run_id, "loss", 3.0, step=3)
    client.restore_run(run_id)
    client.log_metric(run_id, "loss", 4.0, step=4)
    client.delete_experiment(experiment)
    for run in (run_id, other):
        with pytest.raises(refused, match=not_active):
            client.log_metric(run, "loss", 5.0, step=5)
    assert client.get_run(run_id).data.metrics == {"loss": 4.0}


def test_another_team_sees_nothing_of_it(server: MlflowProcess) -> None:
    with client_of(server, "nlp") as nlp:
        run_id = nlp.create_run(nlp.create_experiment("secret")).info.run_id
        nlp.log_metric(run_id, "loss", 1.0)
    with client_of(server, "vision") as vision:
        for ask in (vision.get_run, lambda run: vision.get_metric_history(run, "loss")):
            with pytest.raises(mlflow.exceptions.MlflowException, match="not found"):
                ask(run_id)
        with pytest.raises(mlflow.exceptions.MlflowException, match="not found"):
            vision.log_metric(run_id, "loss", 2.0)
        assert vision.get_experiment_by_name("secret") is None


def test_a_client_s_first_question_is_answered_before_mlflow_is_loaded(
    kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    no_bus = {"GANGLINE_BOOTSTRAP_SERVERS": "127.0.0.1:1", "GANGLINE_MLFLOW_LAZY": "true"}
    with mlflow_server(kafka.bootstrap, tmp_path, own=no_bus) as server:
        headers = {"Authorization": f"Bearer {server.token}"}
        asked = f"{server.url}/api/3.0/mlflow/server-info"
        answer = httpx.get(asked, headers=headers, timeout=60)
        assert answer.json() == server_info(presigned=False)
        with pytest.raises(httpx.ReadTimeout):  # it waits for the bus
            httpx.get(f"{server.url}/version", headers=headers, timeout=1)
