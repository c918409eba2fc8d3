"""Seeds of the simulator: nothing bad ever happens, and everything good happens in the end."""

from __future__ import annotations

import pytest

from gangsim.draw import draw
from gangsim.world import simulate

SEEDS = 2000
CHUNK = 50


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_seeds(first: int) -> None:
    failed = []
    for seed in range(first, first + CHUNK):
        outcome = simulate(draw(seed))
        if outcome.violation:
            failed.append(
                f"seed {seed}: {outcome.violation}\n"
                f"  PYTHONPATH=tests python -m gangsim --seed {seed} --trace"
            )
    assert not failed, "\n".join(failed)
