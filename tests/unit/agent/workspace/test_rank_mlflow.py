"""By which variables a gang's program logs to MLflow, and when it gets none."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from gangline_schemas.events.scheduling import GangAllocated
from gangline_schemas.job import MlflowOptions
from gangline_schemas.mlflow_workspace import mlflow_run_id
from gangline_service.job_tokens import SECRET_KEY, JobAttempt, read_token
from gangline_storage.local import LocalStore
from gangline_storage.shared_secret import SharedSecret
from gangline_worker.agent.workspace.environment import rank_environment
from gangline_worker.agent.workspace.mlflow import MlflowAccess
from support.builders.checkpoints import allocated
from support.builders.gang_paths import gang_paths

GATEWAY = "https://gateway/mlflow"


@pytest.fixture
def access(tmp_path: Path) -> MlflowAccess:
    return MlflowAccess(GATEWAY, SharedSecret(LocalStore(tmp_path / "store"), SECRET_KEY))


def environment(
    access: MlflowAccess, allocation: GangAllocated, tmp_path: Path, **more: dict[str, str]
) -> dict[str, str]:
    return rank_environment(
        allocation, allocation.nodes[0], 0, gang_paths(tmp_path), gpus="", token="t",
        secrets=more.get("secrets", {}), operators=more.get("operators", {}),
        mlflow=access.variables(allocation, tmp_path),
    )  # fmt: skip


def with_spec(allocation: GangAllocated, **fields: object) -> GangAllocated:
    return allocation.model_copy(update={"spec": allocation.spec.model_copy(update=fields)})


def test_the_runs_of_a_program_are_children_of_the_job_s(
    access: MlflowAccess, tmp_path: Path
) -> None:
    given = with_spec(allocated(), project="sft")
    found = environment(access, given, tmp_path)
    assert found["MLFLOW_TRACKING_URI"] == f"{GATEWAY}/teams/{given.team}"
    assert found["MLFLOW_EXPERIMENT_NAME"] == f"{given.team}/sft"
    assert json.loads(found["MLFLOW_RUN_CONTEXT"]) == {
        "mlflow.parentRunId": mlflow_run_id(given.job_id),
        "gangline.job": given.job_id,
        "gangline.attempt": str(given.attempt),
    }
    assert "MLFLOW_RUN_ID" not in found
    attempt = read_token(access.secret.value(), found["MLFLOW_TRACKING_TOKEN"])
    assert attempt == JobAttempt(given.job_id, given.attempt)


def test_the_job_s_run_is_the_program_s_own_where_it_asks(
    access: MlflowAccess, tmp_path: Path
) -> None:
    own = mlflow_run_id(allocated().job_id)
    for options, expected in ((MlflowOptions(run_id=True), own), (MlflowOptions(), None)):
        found = environment(access, with_spec(allocated(), mlflow=options), tmp_path)
        assert found.get("MLFLOW_RUN_ID") == expected


def test_another_server_gets_no_token_of_the_platform(access: MlflowAccess, tmp_path: Path) -> None:
    other = {"MLFLOW_TRACKING_URI": "https://elsewhere"}
    for found in (
        environment(access, with_spec(allocated(), env=other), tmp_path),
        environment(access, allocated(), tmp_path, operators=other),
        environment(access, allocated(), tmp_path, secrets=other),
    ):
        names = {name for name in found if name.startswith("MLFLOW")}
        assert names == {"MLFLOW_TRACKING_URI"}
        assert found["MLFLOW_TRACKING_URI"] == "https://elsewhere"


def test_mlflow_sends_no_telemetry_from_a_job_unless_it_says_so(
    access: MlflowAccess, tmp_path: Path
) -> None:
    name = "MLFLOW_DISABLE_TELEMETRY"
    assert environment(access, allocated(), tmp_path)[name] == "true"
    own = with_spec(allocated(), env={name: "false"})
    assert environment(access, own, tmp_path)[name] == "false"


def test_a_job_s_own_settings_win(access: MlflowAccess, tmp_path: Path) -> None:
    given = with_spec(allocated(), env={"MLFLOW_EXPERIMENT_NAME": "own"})
    found = environment(access, given, tmp_path, secrets={"MLFLOW_TRACKING_TOKEN": "a user's"})
    assert found["MLFLOW_EXPERIMENT_NAME"] == "own"
    assert found["MLFLOW_TRACKING_TOKEN"] == "a user's"


def test_a_gang_gets_the_authority_of_the_gateway_in_its_own_folder(
    access: MlflowAccess, tmp_path: Path
) -> None:
    assert "MLFLOW_TRACKING_SERVER_CERT_PATH" not in environment(access, allocated(), tmp_path)
    (tmp_path / "ca.pem").write_text("the authority")
    trusting = replace(access, ca_file=tmp_path / "ca.pem")
    trusting.put_authority(tmp_path)
    found = environment(trusting, allocated(), tmp_path)
    for name in ("MLFLOW_TRACKING_SERVER_CERT_PATH", "GANGLINE_CA_FILE"):
        assert Path(found[name]).read_text() == "the authority"
