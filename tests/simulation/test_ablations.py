"""With any one safeguard taken away the simulator must notice, with faults that need it."""

from __future__ import annotations

import pytest

from gangsim.ablations import ABLATIONS
from gangsim.draw import draw
from gangsim.plan import Fault, NodePlan, Plan
from gangsim.world import simulate

SEEDS = 1000
CHAOS_S = 270.0


@pytest.mark.parametrize("name", sorted(ABLATIONS))
def test_a_missing_safeguard_is_noticed(name: str) -> None:
    ablation = ABLATIONS[name]
    for seed in range(ablation.first_seed, ablation.first_seed + SEEDS):
        plan = draw(seed, ablation.kinds).incremental(ablation.full_every)
        if simulate(plan, ablation.parts()).violation:
            break
    else:
        raise AssertionError(f"nobody missed in {SEEDS} seeds that {ablation.what}")
    assert simulate(plan).violation == "", "the same plan fails with the safeguard too"


@pytest.mark.parametrize("detail", ["unread", "lost"])
def test_all_are_silent_until_the_last_of_overlapping_silences_is_over(detail: str) -> None:
    nodes = (NodePlan("n0", 2, "rack-0"), NodePlan("n1", 2, "rack-1"))
    silences = tuple(  # none of them alone outlasts the timeout
        Fault(at_s, "silence", "all", 50.0, detail=detail) for at_s in (100.0, 140.0)
    )
    plan = Plan(0, nodes, (), silences, CHAOS_S)
    assert simulate(plan).violation == ""
    violation = simulate(plan, ABLATIONS["mass-silence"].parts()).violation
    assert violation.endswith("was declared dead while all were silent")
