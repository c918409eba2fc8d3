"""Runs of MLflow's clients as runs of history; a real server is in tests/integration."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from gangline_gateway.mlflow_runs import MlflowRuns, history_run
from gangline_gateway.problems import ProblemError
from gangline_schemas.api.runs import Run

RUN = Run(
    run_id="a" * 32, team="nlp", project="7", name="sweep-3", user="ada", state="succeeded",
    reason="", attempt=0, restarts=0, gpus=0, priority=0, started_at=None, ended_at=None,
    submitted_at=datetime(2026, 1, 1, tzinfo=UTC), gpu_seconds=0, strategy="", code_ref="abc123",
    data_snapshot="", hyperparameters={"lr": "0.1"},
)  # fmt: skip


def test_a_run_of_mlflow_has_the_fields_that_are_compared() -> None:
    found = history_run(RUN)
    assert found.run == RUN
    assert json.loads(found.spec) == {"hyperparameters": {"lr": "0.1"}, "code_ref": "abc123"}
    without = history_run(RUN.model_copy(update={"code_ref": ""}))
    assert json.loads(without.spec) == {"hyperparameters": {"lr": "0.1"}}


def test_a_server_that_is_away_is_a_problem() -> None:
    with pytest.raises(ProblemError, match="MLflow does not answer"):
        MlflowRuns("http://127.0.0.1:9", "t").some_runs(["a" * 32], frozenset({"nlp"}))
