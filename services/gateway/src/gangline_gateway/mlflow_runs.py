"""Runs that MLflow clients made, for comparisons: read from the MLflow server by their ids."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import urllib3
from urllib3.exceptions import HTTPError

from gangline_gateway.history import HistoryRun
from gangline_gateway.problems import unavailable
from gangline_schemas.api.runs import Run
from gangline_schemas.mlflow_workspace import workspace_of

_TIMEOUT = urllib3.Timeout(connect=5.0, read=60.0)
"""The first request after a start waits until MLflow is loaded."""
_STATES = {
    "RUNNING": "running", "SCHEDULED": "pending", "FINISHED": "succeeded", "FAILED": "failed",
    "KILLED": "cancelled",
}  # fmt: skip


@dataclass
class MlflowRuns:
    """One MLflow server. May be used from any thread."""

    url: str
    token: str = field(repr=False)

    def __post_init__(self) -> None:
        self._pool = urllib3.PoolManager(maxsize=4, timeout=_TIMEOUT, retries=False)

    def run(self, run_id: str, team: str) -> HistoryRun | None:
        """A run of this team; None if MLflow has none. Raises a 503 problem while it is away."""
        try:
            answer = self._pool.request(
                "GET",
                f"{self.url}/api/2.0/mlflow/runs/get",
                fields={"run_id": run_id},
                headers={
                    "authorization": f"Bearer {self.token}",
                    "x-mlflow-workspace": workspace_of(team),
                },
            )
        except HTTPError:
            raise unavailable("mlflow-away", "MLflow does not answer; try again") from None
        if answer.status == 404:
            return None
        if answer.status != 200:
            raise unavailable("mlflow-away", f"MLflow answered with {answer.status}; try again")
        return mlflow_run(json.loads(answer.data)["run"], team)


def mlflow_run(found: Mapping[str, Any], team: str) -> HistoryRun:
    """A run as MLflow's REST API has it, as a run of history. GPUs and attempts are unknown: 0."""
    info, data = found["info"], found.get("data", {})
    params = {pair["key"]: pair["value"] for pair in data.get("params", ())}
    tags = {pair["key"]: pair["value"] for pair in data.get("tags", ())}
    commit = tags.get("mlflow.source.git.commit", "")
    started = _time(info.get("start_time")) or datetime.fromtimestamp(0, tz=UTC)
    run = Run(
        run_id=info["run_id"],
        team=team,
        project=str(info.get("experiment_id", "")),
        name=info.get("run_name", ""),
        user=info.get("user_id") or tags.get("mlflow.user", ""),
        state=_STATES.get(info.get("status", ""), "running"),
        reason="",
        attempt=0,
        restarts=0,
        gpus=0,
        priority=0,
        submitted_at=started,
        started_at=started,
        ended_at=_time(info.get("end_time")),
        gpu_seconds=0.0,
        gpu_model="",
        cost=None,
        strategy="",
        code_ref=commit,
        data_snapshot="",
        hyperparameters=params,
        tags={name: value for name, value in tags.items() if not name.startswith("mlflow.")},
    )
    spec = {"hyperparameters": params, **({"code_ref": commit} if commit else {})}
    return HistoryRun(run, json.dumps(spec))


def _time(milliseconds: int | str | None) -> datetime | None:
    """None also for one that no datetime can hold: MLflow stores any number."""
    if not milliseconds:
        return None
    try:
        return datetime.fromtimestamp(int(milliseconds) / 1000, tz=UTC)
    except (ValueError, OverflowError, OSError):
        return None
