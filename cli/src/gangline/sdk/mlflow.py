"""MLflow's runs of a team, through the gateway: search, create, log."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gangline.errors import CliError, ExitCode
from gangline.exchange.records import Point
from gangline.sdk.answers import path_id
from gangline.transport import Transport

PER_BATCH = 1000
"""Metrics of one request."""
_TEXTS_PER_BATCH = 25
"""Parameters or tags of one request, which may have 1 MiB."""
_PAGE = 1000


@dataclass(frozen=True)
class MlflowRun:
    """A run as MLflow has it. `metrics`: the names of those that it has."""

    run_id: str
    experiment: str
    name: str
    user: str
    status: str
    started_ms: int | None
    ended_ms: int | None
    params: Mapping[str, str]
    tags: Mapping[str, str]
    metrics: Sequence[str]


class Mlflow:
    """The MLflow runs of one team."""

    def __init__(self, transport: Transport, team: str) -> None:
        self._transport = transport
        self.team = team
        self._base = f"/mlflow/teams/{path_id(team)}/api/2.0/mlflow"
        self._experiments: dict[str, str] = {}  # name by id

    def experiments(self) -> dict[str, str]:
        """Names of the experiments that are not deleted, by id."""
        found: dict[str, str] = {}
        for item in self._pages("experiments/search", "experiments", {}):
            found[item["experiment_id"]] = item["name"]
        self._experiments = found
        return found

    def experiment(self, name: str) -> str:
        """The id of the experiment of this name, which is created if there is none."""
        for known, its_name in self.experiments().items():
            if its_name == name:
                return known
        return str(self._call("POST", "experiments/create", {"name": name})["experiment_id"])

    def search(self, experiments: Sequence[str], where: str = "") -> Iterator[MlflowRun]:
        """Runs of experiments (ids), in the order in which they started, page by page."""
        asked = {
            "experiment_ids": list(experiments),
            "filter": where,
            "order_by": ["attributes.start_time ASC"],
        }
        if experiments:
            for run in self._pages("runs/search", "runs", asked):
                yield self._run(run)

    def run(self, run_id: str) -> MlflowRun | None:
        """One run; None if there is no such run of the team."""
        try:
            answer = self._transport.call(
                "GET", f"{self._base}/runs/get", params={"run_id": run_id}
            )
        except CliError as error:
            if error.code is ExitCode.NOT_FOUND:
                return None
            raise
        return self._run(answer["run"])

    def settle(self, run: MlflowRun) -> None:
        """Wait until the points that were logged to the run can be read."""
        for name in run.metrics[:1]:
            params: dict[str, Any] = {"run_id": run.run_id, "metric_key": name, "max_results": 1}
            self._transport.call("GET", f"{self._base}/metrics/get-history", params=params)

    def create(self, experiment: str, name: str, started_ms: int, tags: Mapping[str, str]) -> str:
        """A new run in an experiment (its id); gives its id."""
        body = {
            "experiment_id": experiment,
            "run_name": name,
            "start_time": started_ms,
            "tags": _pairs(tags.items()),
        }
        return str(
            self._call("POST", "runs/create", body, repeatable=False)["run"]["info"]["run_id"]
        )

    def log_points(self, run_id: str, points: Sequence[Point]) -> None:
        """At most `PER_BATCH` points. A point that is there already changes nothing."""
        metrics = [
            {"key": p.name, "value": _number(p.value), "timestamp": p.time_ms, "step": p.step}
            for p in points
        ]
        self._call("POST", "runs/log-batch", {"run_id": run_id, "metrics": metrics})

    def log_texts(self, run_id: str, params: Mapping[str, str], tags: Mapping[str, str]) -> None:
        """Parameters, which keep their first value, and tags."""
        for kind, texts in (("params", params), ("tags", tags)):
            items = [*texts.items()]
            for first in range(0, len(items), _TEXTS_PER_BATCH):
                part = _pairs(items[first : first + _TEXTS_PER_BATCH])
                self._call("POST", "runs/log-batch", {"run_id": run_id, kind: part})

    def end(self, run_id: str, status: str, ended_ms: int | None) -> None:
        """Set the status, and when the run ended."""
        ended = {} if ended_ms is None else {"end_time": ended_ms}
        self._call("POST", "runs/update", {"run_id": run_id, "status": status, **ended})

    def _run(self, found: Mapping[str, Any]) -> MlflowRun:
        info, data = found["info"], found.get("data", {})
        tags = _mapping(data.get("tags", ()))
        experiment = info["experiment_id"]
        if experiment not in self._experiments:
            self.experiments()
        return MlflowRun(
            info["run_id"],
            self._experiments.get(experiment, experiment),
            info.get("run_name", ""),
            tags.get("mlflow.user") or info.get("user_id", ""),
            info.get("status", ""),
            _whole(info.get("start_time")),
            _whole(info.get("end_time")),
            _mapping(data.get("params", ())),
            tags,
            [item["key"] for item in data.get("metrics", ())],
        )

    def _pages(self, route: str, items: str, asked: Mapping[str, Any]) -> Iterator[Any]:
        body = {**asked, "max_results": _PAGE}
        while True:
            answer = self._call("POST", route, body)
            yield from answer.get(items, ())
            token = answer.get("next_page_token")
            if not token:
                return
            body["page_token"] = token

    def _call(
        self, method: str, route: str, body: Mapping[str, Any], *, repeatable: bool = True
    ) -> Any:
        return self._transport.call(
            method, f"{self._base}/{route}", body=body, repeatable=repeatable
        )


def _pairs(items: Iterable[tuple[str, str]]) -> list[dict[str, str]]:
    return [{"key": key, "value": value} for key, value in items]


def _mapping(pairs: Iterable[Mapping[str, str]]) -> dict[str, str]:
    return {pair["key"]: pair.get("value", "") for pair in pairs}


def _whole(value: Any) -> int | None:
    """MLflow's JSON has whole numbers as numbers or as texts; 0 stands for none."""
    return int(value) or None if value is not None else None


def _number(value: float) -> float | str:
    """As protobuf's JSON has it."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
