"""The import of runs into MLflow: interrupted, linked, and with values that no server takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import httpx
import pytest

from gangline.errors import CliError
from gangline.exchange.importer import DIGEST_TAG, SOURCE_TAG, Importer
from gangline.exchange.records import PARENT, Point, SourceError, SourceRun
from gangline.sdk.mlflow import Mlflow, MlflowRun
from gangline.transport import problem_of
from support.fakes.points import losses


class FakeMlflow:
    """What a team's MLflow holds; `fail_after` batches of points the platform is away."""

    def __init__(self) -> None:
        self.runs: dict[str, MlflowRun] = {}
        self.points: dict[str, set[tuple[Any, ...]]] = {}
        self.fail_after: int | None = None
        self.faulty = ""
        """The server fails on this metric."""
        self.linked = 0

    def experiment(self, name: str) -> str:
        return f"id of {name}"

    def search(self, experiments: Sequence[str], where: str) -> Iterator[MlflowRun]:
        for run in self.runs.values():
            wanted = f"tags.`{SOURCE_TAG}` = '{run.tags[SOURCE_TAG]}'"
            if run.experiment in experiments and wanted == where:
                yield run

    def create(self, experiment: str, name: str, started_ms: int, tags: Mapping[str, str]) -> str:
        run_id = f"run-{len(self.runs)}"
        self.runs[run_id] = MlflowRun(
            run_id, experiment, name, "", "RUNNING", started_ms, None, {}, dict(tags), []
        )
        return run_id

    def log_points(self, run_id: str, points: Sequence[Point]) -> None:
        if self.fail_after is not None:
            self.fail_after -= 1
            if self.fail_after < 0:
                raise CliError("nothing answers")
        if any(point.name == self.faulty for point in points):
            raise problem_of(httpx.Response(500, request=httpx.Request("POST", "http://x/")))
        self.points.setdefault(run_id, set()).update(points)

    def log_texts(self, run_id: str, params: Mapping[str, str], tags: Mapping[str, str]) -> None:
        self.linked += PARENT in tags
        cast("dict[str, str]", self.runs[run_id].params).update(params)
        cast("dict[str, str]", self.runs[run_id].tags).update(tags)

    def end(self, run_id: str, status: str, ended_ms: int | None) -> None:
        assert status in {"FINISHED", "RUNNING"}
        assert ended_ms is None or ended_ms > 0


class FakeSource:
    kind = "source"

    def __init__(self, *runs: SourceRun | SourceError) -> None:
        self._runs = runs

    def runs(self) -> Iterator[SourceRun | SourceError]:
        yield from self._runs


def run_of(name: str, count: int, parent: str = "") -> SourceRun:
    tags = {PARENT: parent, DIGEST_TAG: "of another import"} if parent else {}
    return SourceRun(f"mlflow/{name}", name, lambda _: iter(losses(0, count)), tags=tags)


def test_an_interrupted_import_goes_on_in_the_same_run() -> None:
    mlflow = FakeMlflow()
    mlflow.fail_after = 2
    importer = Importer(cast("Mlflow", mlflow))
    with pytest.raises(CliError):
        importer.run(FakeSource(run_of("a", 5_000)))
    mlflow.fail_after = None
    done = importer.run(FakeSource(run_of("a", 5_000), SourceError(Path("b"), "broken")))
    assert [(run.outcome, run.points) for run in done.runs] == [("updated", 5_000)]
    assert done.troubles == ["b: broken"]
    assert mlflow.points == {"run-0": {*losses(0, 5_000)}}
    again = Importer(cast("Mlflow", mlflow)).run(FakeSource(run_of("a", 5_000)))
    assert [run.outcome for run in again.runs] == ["unchanged"]
    grown = Importer(cast("Mlflow", mlflow)).run(FakeSource(run_of("a", 5_001)))
    assert [run.outcome for run in grown.runs] == ["updated"]
    assert len(mlflow.runs) == 1


def test_a_run_on_which_the_server_fails_does_not_hold_up_the_others() -> None:
    mlflow = FakeMlflow()
    mlflow.faulty = "odd"
    odd = SourceRun("mlflow/odd", "odd", lambda _: iter([Point("odd", 1, 1, 1.0)]))
    done = Importer(cast("Mlflow", mlflow)).run(FakeSource(odd, run_of("a", 2)))
    assert [(run.name, run.outcome) for run in done.runs] == [("odd", "failed"), ("a", "imported")]
    assert done.troubles == ["odd: status 500"]


def test_children_are_linked_to_their_imported_parents() -> None:
    mlflow = FakeMlflow()
    source = FakeSource(run_of("b", 1, "a"), run_of("a", 1), run_of("c", 1, "elsewhere"))
    done = Importer(cast("Mlflow", mlflow)).run(source)
    child, parent, orphan = (mlflow.runs[run.run_id or ""] for run in done.runs)
    assert child.tags[PARENT] == parent.run_id
    assert PARENT not in orphan.tags
    assert child.tags[DIGEST_TAG] != "of another import"
    assert done.left == {"links to parent runs that are not in the source": 1}


def test_an_import_that_was_interrupted_before_its_links_makes_them_the_next_time() -> None:
    mlflow = FakeMlflow()
    mlflow.fail_after = 2
    children = [run_of("b", 1, "a"), run_of("d", 1, "elsewhere")]
    with pytest.raises(CliError):
        Importer(cast("Mlflow", mlflow)).run(FakeSource(*children, run_of("a", 1)))
    mlflow.fail_after = None
    done = Importer(cast("Mlflow", mlflow)).run(FakeSource(*children, run_of("a", 1)))
    assert [run.outcome for run in done.runs] == ["unchanged", "unchanged", "updated"]
    child, orphan, parent = (mlflow.runs[run.run_id or ""] for run in done.runs)
    assert child.tags[PARENT] == parent.run_id
    assert PARENT not in orphan.tags
    linked = mlflow.linked
    again = Importer(cast("Mlflow", mlflow)).run(FakeSource(*children, run_of("a", 1)))
    assert [run.outcome for run in again.runs] == ["unchanged"] * 3
    assert mlflow.linked == linked == 1


def test_points_out_of_range_are_left_out() -> None:
    points = [Point("a", 2**63, 0, 1.0), Point("a", 0, -(2**63) - 1, 1.0), Point("a", 1, 1, 1.0)]
    run = SourceRun("x", "x", lambda _: iter(points))
    assert [*run.points()] == points[2:]
    assert sum(run.left.values()) == 2


@pytest.mark.parametrize(
    "odd",
    [Point(b"a", 1, 1, 1.0), Point("a", None, 1, 1.0), Point("a", 1, 1, "x")],  # type: ignore[arg-type]
)
def test_points_of_other_types_are_left_out(odd: Point) -> None:
    run = SourceRun("x", "x", lambda _: iter([odd, Point("a", 1, 1, 1.0)]))
    assert [*run.points()] == [Point("a", 1, 1, 1.0)]
    assert sum(run.left.values()) == 1


def test_texts_and_times_that_no_server_takes() -> None:
    torn, mlflow = "a\ud800", FakeMlflow()
    points = [Point(torn, 1, 1, 1.0)]
    run = SourceRun(torn, torn, lambda _: iter(points), started_ms=10**300, ended_ms=-(10**300))
    run.project, run.params, run.tags = torn, {torn: torn}, {torn: torn}
    Importer(cast("Mlflow", mlflow)).run(FakeSource(run))
    (made,) = mlflow.runs.values()
    assert (made.name, made.experiment, made.started_ms) == ("a?", "id of a?", 0)
    assert (made.params, made.tags["a_"]) == ({"a_": "a?"}, "a?")
    assert mlflow.points == {"run-0": {Point("a_", 1, 1, 1.0)}}
