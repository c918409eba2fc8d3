"""Drift on the platform: it raises an alert, and starts a pipeline with a study."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from mlflow import MlflowClient

from gangline.sdk import Gangline, connect
from gangline_registry.core.profiling import profile_of
from gangline_schemas.gate_file import Gate
from support.fixtures.platform import RunningPlatform
from support.waiting import wait_until

MODEL, ALIAS, TEAM = "e2e-drifting", "champion", "default"
OLD, NEW = (f"words@xxh3-{number:032x}" for number in (81, 82))
WAIT_S = 300.0
_CPU = {"gpus": 0, "cpus": 1, "memory_gb": 1}
_REPORT = (
    "from gangline_worker.reporting import flush, report; import os; "
    "report({'eval_loss': float(os.environ['X']) ** 2}, 1); flush()"
)
PIPELINE: dict[str, Any] = {
    "name": "retrain", "team": TEAM,
    "steps": {
        "search": {"study": {
            "objective": {"metric": "eval_loss"},
            "space": {"x": {"type": "choice", "values": [1.0, 2.0]}},
            "sampler": "grid", "limits": {"trials": 2, "parallel": 2},
            "job": {"command": ["python", "-c", _REPORT], "env": {"X": "${{ x }}"},
                    "resources": _CPU},
        }},
        "note": {
            "when": "search.best < 2",
            "job": {"run": "test ${{ best.search.x }} = 1.0 && test -n ${{ trigger.snapshot }}",
                    "resources": _CPU},
        },
    },
    "triggers": {"drifted": {"drift": MODEL}},
}  # fmt: skip

pytestmark = pytest.mark.nightly


def send(gateway: Gangline, snapshot: str, shift: float) -> None:
    values = [float(number % 97) + shift for number in range(2000)]
    made = profile_of({"length": values}, len(values)).model_dump(mode="json")
    gateway.send_profile(TEAM, snapshot, made, datetime.now(UTC))


def test_drift_raises_an_alert_and_starts_a_pipeline_with_a_study_once(
    platform: RunningPlatform, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", platform.client.token)
    uri = f"{platform.client.url}/mlflow/teams/{TEAM}"
    client = MlflowClient(tracking_uri=uri, registry_uri=uri)
    client.create_registered_model(MODEL)
    run = client.create_run(client.create_experiment(MODEL)).info.run_id
    client.create_model_version(MODEL, f"runs:/{run}/m1", run_id=run)
    gate = {
        "team": TEAM, "model": MODEL, "aliases": [ALIAS], "baseline": "current",
        "first": "accept", "checkpoint": "any", "training_data": {},
        "suites": {"qa": {"at_least": 0.5, "min_items": 10}},
    }  # fmt: skip
    with connect(platform.client.url, platform.client.token) as gateway:
        gateway.set_gate(Gate.model_validate(gate))
        gateway.apply_pipeline(PIPELINE)
        send(gateway, OLD, 0.0)
        gateway.register(MODEL, version=1, snapshot=OLD, team=TEAM)
        gateway.report_scores(MODEL, 1, "qa", {f"q{n}": 1.0 for n in range(20)}, team=TEAM)
        assert gateway.promote_version(MODEL, 1, alias=ALIAS, team=TEAM).moved
        for _ in range(2):
            send(gateway, NEW, 40.0)

        def runs() -> list[str]:
            return [one.run_id for one in gateway.pipeline_runs("retrain", team=TEAM)]

        wait_until("the run that drift starts", runs)
        ended = gateway.wait_pipeline_run(runs()[0], WAIT_S)
        assert ended.state == "succeeded", ended
        assert {one.name: one.state for one in ended.step_rows} == {
            "search": "succeeded", "note": "succeeded",
        }  # fmt: skip

        def alerts() -> list[Any]:
            return [one for one in gateway.alerts() if one.rule == "data-drift"]

        wait_until("the alert", alerts)
        assert [one.subject for one in alerts()] == [f"{MODEL}@{ALIAS}"]
        send(gateway, f"words@xxh3-{83:032x}", 0.0)
        wait_until("the end of the alert", lambda: not alerts())
        assert len(runs()) == 1
        gateway.remove_gate(MODEL, team=TEAM)
        gateway.remove_pipeline("retrain", team=TEAM)
