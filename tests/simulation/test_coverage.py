"""The simulator is not vacuous: what the safeguards are for does happen in its runs."""

from __future__ import annotations

from collections import Counter

import pytest

from gangsim.draw import draw
from gangsim.faults import KINDS
from gangsim.world import simulate

SEEDS = 60  # test_simulation.py begins with the next
RARE = (
    ("agent.pause",),
    ("poison",),
    ("rank.crash",),
    ("store.away",),
    ("pause",),
    ("leak",),
    ("rank.hang",),
)
RARE_SEEDS = 12
HANGS = ((1002, ("rank.hang", "agent.pause")), (1055, ("rank.hang", "rank.crash")))
"""Few hangs last until they are found."""
MUST_HAPPEN = (
    "crash: Fenced",
    "crash: BusUnavailable",
    "crash: after the commit it was paused in",
    "crash: zombie: Fenced",
    "poison",
    "poison: silent",
    "late-end: True",
    "late-end: False",
    "offsets forgotten",
    "lease.lost",
    "guard.kills",
    "node.suspected",
    "node.failed",
    "node.recovered",
    "gang.failed",
    "gang.failed: hang",
    "gang.exit.noted",
    "gang.running",
    "job.progressed",
    "incident.closed",
    "gang.preempting",
    "gang.preempting: failed",
    "gang.saved",
    "checkpoint.committed",
    "checkpoint.abandoned",
    "checkpoint.corrupted",
    "restored",
    "checkpoint.effect.deferred",
    "job.restore.admitted",
    "job.cancel.admitted",
    "job.rejected",
    "request.refused",
    "node.uncordoned",
)


@pytest.fixture(scope="module")
def happened() -> Counter[str]:
    counts: Counter[str] = Counter()
    plans = [draw(seed) for seed in range(SEEDS)]
    plans += [draw(seed, kinds) for kinds in RARE for seed in range(RARE_SEEDS)]
    plans += [draw(seed, kinds) for seed, kinds in HANGS]
    for plan in plans:
        outcome = simulate(plan)
        assert outcome.violation == "", f"seed {plan.seed}"
        counts.update(dict(outcome.counts))
    return counts


def test_what_the_safeguards_are_for_happens(happened: Counter[str]) -> None:
    assert [what for what in MUST_HAPPEN if not happened[what]] == []


def test_every_kind_of_fault_is_drawn() -> None:
    drawn = {fault.kind for seed in range(2 * SEEDS) for fault in draw(seed).faults}
    assert sorted(drawn) == sorted(KINDS)
