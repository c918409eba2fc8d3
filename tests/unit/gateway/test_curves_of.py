"""Which curves an answer has, and with how many points."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from gangline_gateway.curves import CurveQuery
from gangline_gateway.history_access import Queries
from gangline_gateway.routes.comparisons import curves_of

LAYERS = [f"grad_norm/{layer:03}" for layer in range(199)]


def asked(known: list[str], *names: str, points: int = 1000) -> CurveQuery:
    """The query for curves of a run that has these metrics."""
    found: list[CurveQuery] = []
    curves = SimpleNamespace(
        names=lambda _, **__: known, curves=lambda query: found.append(query) or []
    )
    curves_of(cast("Queries", SimpleNamespace(curves=curves)), {"run": "nlp"}, names, points)
    return found[0]


def test_a_run_with_many_metrics_has_curves_of_all_with_fewer_points() -> None:
    query = asked([*LAYERS, "loss"])
    assert set(query.names) == {*LAYERS, "loss"}
    assert query.points == 250


@pytest.mark.parametrize("given", [(), (*LAYERS, "valid_loss")])
def test_of_too_many_metrics_the_losses_are_there(given: tuple[str, ...]) -> None:
    query = asked([f"m{number}" for number in range(2000)] + ["valid_loss"], *given)
    assert query.names[0] == "valid_loss"
    assert len(query.names) == (50 if given else 1000)
    assert query.points == (1000 if given else 50)
