"""Parallel coordinates: axes of numbers and of texts."""

from __future__ import annotations

from gangline_gateway.parallel import parallel
from gangline_schemas.api.runs import Final, ParallelAxis
from support.builders.runs import run


def axis(kind: str, name: str, low: float | None, high: float | None, *texts: str) -> ParallelAxis:
    return ParallelAxis.model_validate(
        {"kind": kind, "name": name, "texts": list(texts), "low": low, "high": high}
    )


def test_axes_are_what_differs_with_ranges_or_texts() -> None:
    runs = [
        run("a", lr="0.1", opt="adamw", same="1", depth="4"),
        run("b", lr="1e-3", opt="sgd", same="1", depth="deep"),
        run("c", lr="0.5", opt="adamw", same="1"),
    ]
    loss = {run_id: Final(step=9, value=v, low=1, high=5) for run_id, v in (("a", 2), ("b", 4))}
    found = parallel(runs, {"loss": loss})
    assert found.axes == [
        axis("param", "depth", None, None, "4", "deep"),
        axis("param", "lr", 0.001, 0.5),
        axis("param", "opt", None, None, "adamw", "sgd"),
        axis("attribute", "gpu_hours", 2, 2),
        axis("metric", "loss", 2, 4),
    ]
    assert [row.values for row in found.runs] == [
        ["4", 0.1, "adamw", 2.0, 2.0],
        ["deep", 0.001, "sgd", 2.0, 4.0],
        [None, 0.5, "adamw", 2.0, None],
    ]


def test_numbers_that_are_not_finite_are_texts() -> None:
    (first, *_) = parallel([run("a", clip="inf"), run("b", clip="1")], {}).axes
    assert first.texts == ["1", "inf"]
