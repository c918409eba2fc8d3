"""Where artifacts are kept, for each form of a store's URL."""

from __future__ import annotations

import pytest

from gangline_mlflow.config import Settings

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
    settings = Settings(
        bootstrap_servers="127.0.0.1:9092",
        mlflow_database="sqlite:////data/mlflow.db",
        store_url=store,
        service_token="t",
        clickhouse_url="http://127.0.0.1:8123",
    )
    assert settings.artifacts_url == artifacts
