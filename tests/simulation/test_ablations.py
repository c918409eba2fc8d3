"""With any one safeguard taken away the simulator must notice, with faults that need it."""

from __future__ import annotations

import pytest

from gangsim.ablations import ABLATIONS
from gangsim.draw import draw
from gangsim.world import simulate

SEEDS = 1000


@pytest.mark.parametrize("name", sorted(ABLATIONS))
def test_a_missing_safeguard_is_noticed(name: str) -> None:
    ablation = ABLATIONS[name]
    for seed in range(SEEDS):
        plan = draw(seed, ablation.kinds)
        if simulate(plan, ablation.parts()).violation:
            break
    else:
        raise AssertionError(f"nobody missed in {SEEDS} seeds that {ablation.what}")
    assert simulate(plan).violation == "", "the same plan fails with the safeguard too"
