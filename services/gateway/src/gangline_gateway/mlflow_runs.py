"""Runs that MLflow clients made: searched in the MLflow server, which has their parameters."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

import urllib3
from urllib3.exceptions import HTTPError

from gangline_gateway.history import HistoryRun
from gangline_gateway.problems import unavailable
from gangline_gateway.user_limits import SharedSlots
from gangline_schemas.api.runs import Run
from gangline_schemas.run_search import RUNS_PATH, FoundRun, FoundRuns, RunSearch

AT_ONCE, PER_USER = 12, 4
_TIMEOUT = urllib3.Timeout(connect=5.0, read=60.0)
"""The first request after a start waits until MLflow is loaded."""


@dataclass
class MlflowRuns:
    """One MLflow server. May be used from any thread. Raises a 503 problem while it is away."""

    url: str
    token: str = field(repr=False)

    def __post_init__(self) -> None:
        self._places = SharedSlots(AT_ONCE, PER_USER, "searches of MLflow's runs")
        self._pool = urllib3.PoolManager(maxsize=4, timeout=_TIMEOUT, retries=False)

    def some_runs(self, run_ids: Sequence[str], teams: frozenset[str] | None) -> list[HistoryRun]:
        """Those of these runs, one or more, that exist in these teams (None: in any)."""
        named = None if teams is None else tuple(teams)
        asked = RunSearch(teams=named, run_ids=tuple(run_ids), limit=len(run_ids))
        return [history_run(found.run) for found in self.search(asked)]

    def search(self, asked: RunSearch) -> tuple[FoundRun, ...]:
        """A page of runs. Also raises a 429 problem."""
        with self._places.hold():
            return self._search(asked)

    def _search(self, asked: RunSearch) -> tuple[FoundRun, ...]:
        try:
            answer = self._pool.request(
                "POST",
                f"{self.url}{RUNS_PATH}",
                body=asked.model_dump_json(),
                headers={
                    "authorization": f"Bearer {self.token}",
                    "content-type": "application/json",
                },
            )
        except HTTPError:
            raise unavailable("mlflow-away", "MLflow does not answer; try again") from None
        if answer.status != 200:
            raise unavailable("mlflow-away", f"MLflow answered with {answer.status}; try again")
        return FoundRuns.model_validate_json(answer.data).runs


def history_run(run: Run) -> HistoryRun:
    """A run of MLflow as one of history."""
    spec = {
        "hyperparameters": run.hyperparameters,
        **({"code_ref": run.code_ref} if run.code_ref else {}),
    }
    return HistoryRun(run, json.dumps(spec))
