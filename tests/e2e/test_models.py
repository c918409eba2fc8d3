"""From a gate to a rollback on the platform, seen by MLflow's own client."""

from __future__ import annotations

import mlflow.exceptions
import pytest
from mlflow import MlflowClient

from gangline.sdk import connect
from gangline_schemas.gate_file import Gate
from support.fixtures.platform import RunningPlatform
from support.waiting import wait_until

MODEL, ALIAS, TEAM = "e2e-tagger", "champion", "research"


def test_a_protected_alias_moves_by_its_gate_and_back(
    platform: RunningPlatform, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", platform.client.token)
    uri = f"{platform.client.url}/mlflow/teams/{TEAM}"
    client = MlflowClient(tracking_uri=uri, registry_uri=uri)
    client.create_registered_model(MODEL)
    run = client.create_run(client.create_experiment(MODEL)).info.run_id
    with connect(platform.client.url, platform.client.token) as gateway:
        fields = {
            "team": TEAM, "model": MODEL, "aliases": [ALIAS], "baseline": "current",
            "first": "accept", "checkpoint": "any", "suites": {"qa": {"rule": "better"}},
        }  # fmt: skip
        gateway.set_gate(Gate.model_validate(fields))
        for number, right in ((1, 50), (2, 90), (3, 60)):
            client.create_model_version(MODEL, f"runs:/{run}/m{number}", run_id=run)
            gateway.register(MODEL, version=number, team=TEAM)
            scores = {f"q{item}": float(item < right) for item in range(100)}
            gateway.report_scores(MODEL, number, "qa", scores, team=TEAM)
            promoted = gateway.promote_version(MODEL, number, alias=ALIAS, team=TEAM)
            assert promoted.moved == (number < 3), promoted

        def shown() -> int:
            return int(client.get_model_version_by_alias(MODEL, ALIAS).version)

        wait_until("the promotion in MLflow", lambda: shown() == 2)
        for change in (
            lambda: client.set_registered_model_alias(MODEL, ALIAS, "3"),
            lambda: client.delete_registered_model_alias(MODEL, ALIAS),
            lambda: client.delete_model_version(MODEL, "2"),
            lambda: client.rename_registered_model(MODEL, "other"),
            lambda: client.delete_registered_model(MODEL),
            lambda: client.transition_model_version_stage(MODEL, "3", "Production"),
        ):
            with pytest.raises(mlflow.exceptions.MlflowException, match="protect"):
                change()
        moved = gateway.roll_back(MODEL, alias=ALIAS, expected=2, team=TEAM)
        assert (moved.from_version, moved.to_version) == (2, 1)
        wait_until("the rollback in MLflow", lambda: shown() == 1)
        gateway.remove_gate(MODEL, team=TEAM)
