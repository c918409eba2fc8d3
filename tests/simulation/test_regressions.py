"""Plans that once failed, shrunk; and that shrinking keeps what makes a plan fail."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gangsim.ablations import ABLATIONS
from gangsim.draw import draw
from gangsim.plan import Plan
from gangsim.shrink import shrink, write_regression
from gangsim.world import simulate

REGRESSIONS = sorted((Path(__file__).parent / "regressions").glob("*.json"))


@pytest.mark.parametrize("path", REGRESSIONS, ids=lambda path: path.stem)
def test_a_plan_that_once_failed(path: Path) -> None:
    data = json.loads(path.read_text(encoding="utf-8"))
    outcome = simulate(Plan.from_data(data["plan"]))
    assert outcome.violation == "", f"{path.name} (was: {data['violation']})"


def test_a_failing_plan_shrinks_and_is_kept(tmp_path: Path) -> None:
    ablation = ABLATIONS["fencing"]
    plan = next(
        plan
        for plan in (draw(seed, ablation.kinds) for seed in range(50))
        if simulate(plan, ablation.parts()).violation
    )
    found = shrink(plan, lambda smaller: simulate(smaller, ablation.parts()).violation)
    assert len(found.plan.faults) == 1
    assert len(found.plan.jobs) <= len(plan.jobs)
    path = write_regression(found.plan, found.violation, tmp_path)
    kept = Plan.from_data(json.loads(path.read_text(encoding="utf-8"))["plan"])
    assert path.name == "001.json"
    assert simulate(kept, ablation.parts()).violation == found.violation
