"""Runs of MLflow's REST API as runs of history."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from gangline_gateway.mlflow_runs import MlflowRuns, mlflow_run
from gangline_gateway.problems import ProblemError

RUN = {
    "info": {
        "run_id": "a" * 32,
        "run_name": "sweep-3",
        "experiment_id": "7",
        "status": "FINISHED",
        "user_id": "",
        "start_time": 1_764_000_000_000,
        "end_time": "1764000060000",
    },
    "data": {
        "params": [{"key": "lr", "value": "0.1"}],
        "tags": [
            {"key": "mlflow.user", "value": "ada"},
            {"key": "mlflow.source.git.commit", "value": "abc123"},
        ],
    },
}


def test_a_run_of_mlflow_has_the_fields_that_are_compared() -> None:
    found = mlflow_run(RUN, "nlp")
    run = found.run
    assert (run.run_id, run.team, run.name, run.user) == ("a" * 32, "nlp", "sweep-3", "ada")
    assert (run.state, run.code_ref, run.hyperparameters) == ("succeeded", "abc123", {"lr": "0.1"})
    assert run.ended_at == datetime.fromtimestamp(1_764_000_060, tz=UTC)
    assert json.loads(found.spec) == {"hyperparameters": {"lr": "0.1"}, "code_ref": "abc123"}


def test_a_run_that_has_just_begun() -> None:
    begun = {"info": {**RUN["info"], "status": "RUNNING"}}
    del begun["info"]["end_time"]
    run = mlflow_run(begun, "nlp").run
    assert (run.state, run.ended_at, run.hyperparameters) == ("running", None, {})


def test_times_beyond_all_years_are_unknown() -> None:
    odd = {"info": {**RUN["info"], "start_time": 10**18, "end_time": str(-(10**18))}}
    run = mlflow_run(odd, "nlp").run
    assert (run.started_at, run.ended_at) == (datetime.fromtimestamp(0, tz=UTC), None)


def test_a_server_that_is_away_is_a_problem() -> None:
    with pytest.raises(ProblemError, match="MLflow does not answer"):
        MlflowRuns("http://127.0.0.1:9", "t").run("a" * 32, "nlp")
