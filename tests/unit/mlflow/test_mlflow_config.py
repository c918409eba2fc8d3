"""Where artifacts are kept, for each form of a store's URL, and what stays off."""

from __future__ import annotations

import pytest

from gangline_mlflow.config import Settings
from gangline_mlflow.server import environment

S3 = "s3://bucket/a?endpoint=http://127.0.0.1:9000&region=eu-1"


@pytest.mark.parametrize(
    ("store", "artifacts"),
    [
        ("/data/store", "/data/store/mlflow"),
        ("file:///data/my%20store/", "file:///data/my%20store/mlflow"),
        ("s3://bucket", "s3://bucket/mlflow"),
        (S3, "s3://bucket/a/mlflow?endpoint=http://127.0.0.1:9000&region=eu-1"),
    ],
)
def test_artifacts_are_below_the_store(store: str, artifacts: str) -> None:
    assert settings_of(store).artifacts_url == artifacts


def settings_of(store: str) -> Settings:
    return Settings(
        bootstrap_servers="127.0.0.1:9092",
        mlflow_database="sqlite:////data/mlflow.db",
        store_url=store,
        service_token="t",
        clickhouse_url="http://127.0.0.1:8123",
    )


@pytest.mark.parametrize(
    "name",
    [
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION", "MLFLOW_ENABLE_AI_GATEWAY",
        "MLFLOW_ALLOW_PICKLE_DESERIALIZATION", "_MLFLOW_WEBHOOK_ALLOW_PRIVATE_IPS",
        "MLFLOW_GATEWAY_API_BASE_ALLOW_PRIVATE_IPS", "MLFLOW_ENABLE_WORKSPACES",
    ],
)  # fmt: skip
def test_what_runs_programs_or_calls_private_hosts_is_off(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    variables = pytest.importorskip("mlflow.environment_variables")
    for each, value in environment(settings_of("/data/store")).items():
        monkeypatch.setenv(each, value)
    # As MLflow itself reads it: a release may call it otherwise.
    assert getattr(variables, name).get() is (name == "MLFLOW_ENABLE_WORKSPACES")
