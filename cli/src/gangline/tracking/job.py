"""The job that this process belongs to, as the node agent says in the environment."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gangline.tracking.live import Progress, Sink
from gangline.tracking.values import Point
from gangline_schemas.mlflow_workspace import mlflow_run_id

FLUSH_S: Final = 10.0


@dataclass(frozen=True)
class Job:
    """The job, as the agent describes it to a rank."""

    job_id: str
    hyperparameters: Mapping[str, Any]
    tracking_uri: str | None
    """Of the job's team on the gateway; None: the job has no access to it."""
    token: str
    experiment: str | None
    context: Mapping[str, str]
    """Tags of runs that the job makes: its own run is their parent."""

    @property
    def run_id(self) -> str:
        """The MLflow run that is this job."""
        return mlflow_run_id(self.job_id)


def job_of(environment: Mapping[str, str]) -> Job | None:
    """The job of an environment; None outside of jobs."""
    job_id = environment.get("GANGLINE_JOB_ID")
    if not job_id:
        return None
    return Job(
        job_id=job_id,
        hyperparameters=_mapping(environment.get("GANGLINE_HYPERPARAMETERS")),
        tracking_uri=environment.get("MLFLOW_TRACKING_URI") or None,
        token=environment.get("MLFLOW_TRACKING_TOKEN", ""),
        experiment=environment.get("MLFLOW_EXPERIMENT_NAME") or None,
        context={
            name: str(value)
            for name, value in _mapping(environment.get("MLFLOW_RUN_CONTEXT")).items()
        },
    )


def worker_report() -> Any:
    """`gangline_worker.reporting`, connected to this rank's agent; None without one."""
    try:
        reporting = importlib.import_module("gangline_worker.reporting")
    except ImportError:  # the job's image has no worker library
        return None
    return reporting if reporting.reporter().connected else None


class JobRun:
    """The job's own run: metrics by the agent, as `report()` sends them; the rest by `others`."""

    def __init__(self, reporting: Any, others: Callable[[], Sink]) -> None:
        """`others` makes the sink of parameters, tags and artifacts, at the first one."""
        self._reporting, self._make = reporting, others
        self._others: Sink | None = None

    @property
    def progress(self) -> Progress:
        """The agent's line to the rank says what it left out."""
        return Progress(dropped=self._reporting.reporter().dropped)

    def put(self, points: Sequence[Point], step: int, _time_ms: int, /) -> None:
        """Report a step; takes microseconds."""
        self._reporting.report(dict(points), step)

    def record(self, record: Sequence[object]) -> None:
        """Keep what is not a metric, and upload it."""
        self._other().record(record)

    def keep_file(self, source: Any, name: str) -> None:
        """Keep an artifact, and upload it. Raises OSError."""
        self._other().keep_file(source, name)

    def close(self, status: str, timeout_s: float) -> None:
        """Wait until the agent has all steps, and the server the rest."""
        self._reporting.flush(FLUSH_S)
        if self._others is not None:
            self._others.close(status, timeout_s)

    def _other(self) -> Sink:
        if self._others is None:
            self._others = self._make()
        return self._others


def _mapping(text: str | None) -> dict[str, Any]:
    try:
        found = json.loads(text or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
