"""Reads sources of `gangline import`."""

from __future__ import annotations

from pathlib import Path

from gangline.exchange.records import SourceRun
from gangline.exchange.sources import source_of

RECORDED = Path(__file__).parents[2] / "unit" / "cli" / "data" / "offline.wandb"
"""A run file of W&B 0.31."""


def runs(path: Path) -> list[SourceRun]:
    """The runs of a source, none of which is an error."""
    found = [*source_of(path).runs()]
    assert all(isinstance(run, SourceRun) for run in found), found
    return found  # type: ignore[return-value]


def values(run: SourceRun) -> dict[tuple[str, int], float]:
    """The values of a run's points, by name and step."""
    return {(point.name, point.step): point.value for point in run.points()}
