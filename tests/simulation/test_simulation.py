"""Seeds of the simulator: nothing bad ever happens, and everything good happens in the end.

`make soak` runs the first 10,000 seeds. The first 40 are run by test_coverage.py.
"""

from __future__ import annotations

import pytest

from gangsim.draw import draw
from gangsim.world import simulate

COVERED = 40
SEEDS = 50
CHUNK = 10


@pytest.mark.parametrize("first", range(COVERED, SEEDS, CHUNK))
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
