"""Curves as columns, comparisons without curves, and lists with final metrics: over HTTP."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import httpx
import pytest

from gangline_gateway.curves import CurveQuery
from gangline_gateway.history import HistoryRun
from gangline_gateway.mlflow_runs import MlflowRuns
from gangline_schemas.api.base import Answer
from gangline_schemas.api.runs import Comparison, Curve, Final, Overlay, Point, RunPage
from gangline_schemas.run_search import FoundRun, RunSearch
from gangline_service.tokens import Principal, Role
from support.builders.runs import NOW, run
from support.clients import routes
from support.clients.routes import history_of, with_history

ADMIN = Principal(name="root", role=Role.ADMIN, teams=frozenset())
VISION = Principal(name="bob", role=Role.MEMBER, teams=frozenset({"vision"}))
RUNS = {"a": run("a", lr="0.1"), "b": run("b", lr="0.2")}


class Source:
    """Two runs of the team nlp, each with a curve of two points."""

    def __init__(self) -> None:
        self.read: list[CurveQuery] = []

    def runs(self, *_: object, **__: object) -> list[FoundRun]:
        return [
            FoundRun(run=each, order=(each.submitted_at.timestamp() - number, each.run_id))
            for number, each in enumerate(RUNS.values())
        ]

    def some_runs(self, ids: Sequence[str], teams: frozenset[str] | None) -> list[HistoryRun]:
        seen = teams is None or "nlp" in teams
        return [HistoryRun(RUNS[each], "{}") for each in ids if each in RUNS and seen]

    def latest(self, runs: Mapping[str, str]) -> dict[str, dict[str, Final]]:
        return {"loss": {each: Final(step=9, value=0.5, low=0.25, high=4) for each in runs}}

    def used(self, _: object) -> dict[str, Any]:
        return {}

    def curves(self, asked: CurveQuery) -> list[Curve]:
        self.read.append(asked)
        points = [
            Point(
                first_step=5 * n, step=5 * n + 4, time=NOW, x=5.0 * n, value=2.0 - n, low=1.0 - n,
                high=10 / 3, smoothed=1.5 if asked.smoothing else None,
            )
            for n in range(2)
        ]  # fmt: skip
        return [Curve(run_id=each, name=asked.names[0], points=points) for each in asked.runs]


class Mlflow(MlflowRuns):
    """Runs of MLflow's clients; counts searches."""

    def __init__(self, *ids: str) -> None:
        super().__init__("http://mlflow", "t")
        self.ids, self.asked = ids, list[RunSearch]()

    def search(self, asked: RunSearch) -> tuple[FoundRun, ...]:
        self.asked.append(asked)
        return tuple(
            FoundRun(run=run(each, lr="0.3"), order=())
            for each in self.ids
            if each in asked.run_ids
        )


def ask(
    source: Source, caller: Principal, path: str, mlflow: MlflowRuns | None = None, **params: Any
) -> httpx.Response:
    history = history_of(history=source, curves=source, resources=source)
    return routes.ask(with_history(history, mlflow=mlflow), caller, path, params=params)


def test_an_overlay_has_the_curves_as_columns() -> None:
    source = Source()
    asked = {"run": ["b", "a", "b"], "name": "loss", "axis": "time", "first": 1, "points": 7}
    answer = ask(source, ADMIN, "/v1/runs/overlay", **asked)
    first, second = Overlay.model_validate_json(answer.text).curves
    assert (first.run_id, second.run_id, first.name) == ("b", "a", "loss")
    assert (first.step, first.x, first.value) == ([4, 9], [0, 5], [2, 1])
    assert (first.low, first.high) == ([1, 0], [3.3333, 3.3333])
    (query,) = source.read
    assert (query.axis, query.first, query.points, query.runs) == (
        "time", 1, 7, {"b": "nlp", "a": "nlp"},
    )  # fmt: skip
    smooth = ask(source, ADMIN, "/v1/runs/overlay", run="a", name="loss", smoothing=0.5).json()
    assert smooth["curves"][0]["value"] == [1.5, 1.5]


def test_an_overlay_needs_runs_of_the_caller_and_a_metric() -> None:
    source = Source()
    assert ask(source, VISION, "/v1/runs/overlay", run="a", name="loss").status_code == 404
    assert ask(source, ADMIN, "/v1/runs/overlay", run="a").status_code == 422
    assert source.read == []


@pytest.mark.parametrize(
    ("long", "path", "params"),
    [
        (Comparison, "/v1/runs/compare", {"run": ["a", "b"], "name": "loss"}),
        (RunPage, "/v1/runs", {"metrics": "true"}),
    ],
)
def test_others_are_answered_while_a_long_answer_becomes_json(
    monkeypatch: pytest.MonkeyPatch, long: type[Answer], path: str, params: Any
) -> None:
    made_by: list[int] = []
    plain = long.model_dump_json

    def noted(part: Answer) -> str:
        made_by.append(threading.get_ident())
        return plain(part)

    monkeypatch.setattr(long, "model_dump_json", noted)
    answer = ask(Source(), ADMIN, path, **params)
    assert len(answer.json().get("curves", answer.json()["runs"])) == 2
    assert len(made_by) == 1
    assert threading.get_ident() not in made_by


def test_a_comparison_may_leave_curves_out() -> None:
    source = Source()
    answer = ask(source, ADMIN, "/v1/runs/compare", run=["a", "b"], curves="false")
    found = Comparison.model_validate_json(answer.text)
    assert ([*found.metrics], found.curves, source.read) == (["loss"], [], [])


def test_runs_of_mlflow_are_asked_for_at_once() -> None:
    one, other = "1" * 32, "2" * 32
    mlflow = Mlflow(other, one)
    asked = {"run": [one, "a", other], "curves": "false"}
    answer = ask(Source(), ADMIN, "/v1/runs/compare", mlflow, **asked)
    found = Comparison.model_validate_json(answer.text)
    assert [each.run_id for each in found.runs] == [one, "a", other]
    (search,) = mlflow.asked
    assert (search.run_ids, search.teams) == ((one, other), None)
    assert ask(Source(), ADMIN, "/v1/runs/compare", Mlflow(one), **asked).status_code == 404
    assert ask(Source(), ADMIN, "/v1/runs/compare", **asked).status_code == 404


def test_a_page_of_runs_has_final_metrics_on_request() -> None:
    plain = RunPage.model_validate_json(ask(Source(), ADMIN, "/v1/runs").text)
    assert plain.metrics == {}
    answer = ask(Source(), ADMIN, "/v1/runs", metrics="true")
    finals = RunPage.model_validate_json(answer.text).metrics["loss"]
    assert (finals["a"].value, finals["a"].low, [*finals]) == (0.5, 0.25, ["a", "b"])
