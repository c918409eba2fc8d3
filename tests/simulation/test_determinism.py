"""Equal seeds do equal things, in this process and in any other."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gangsim.draw import draw
from gangsim.plan import Plan
from gangsim.world import simulate

TESTS = Path(__file__).parent.parent
SEEDS = (1, 7, 23)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_trace_hash_is_the_same_again(seed: int) -> None:
    first, second = simulate(draw(seed)), simulate(draw(seed))
    assert first == second
    assert first.trace_hash != simulate(draw(seed + 1)).trace_hash


def test_the_trace_hash_does_not_depend_on_the_hash_seed() -> None:
    code = (
        "from gangsim.draw import draw; from gangsim.world import simulate\n"
        f"for seed in {SEEDS}: print(simulate(draw(seed)).trace_hash)"
    )
    expected = [simulate(draw(seed)).trace_hash for seed in SEEDS]
    other = "4242" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    answer = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONHASHSEED": other, "PYTHONPATH": str(TESTS)},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert answer.stdout.split() == expected


@pytest.mark.parametrize("seed", SEEDS)
def test_a_plan_survives_its_json(seed: int) -> None:
    import json

    plan = draw(seed)
    assert Plan.from_data(json.loads(plan.to_json())["plan"]) == plan
