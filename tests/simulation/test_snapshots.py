"""Takeovers from snapshots: the same state as the whole log's, and the same run."""

from __future__ import annotations

import os
from collections import Counter

from gangsim.draw import draw
from gangsim.parts import Parts
from gangsim.world import simulate

SEEDS = range(2000, 2000 + int(os.environ.get("GANGLINE_SIMULATED_SEEDS", "10")))
EVERY = 5


def test_heirs_go_on_from_snapshots() -> None:
    counts: Counter[str] = Counter()
    for seed in SEEDS:
        outcome = simulate(draw(seed), Parts(snapshot_every=EVERY))
        assert not outcome.violation, f"seed {seed}: {outcome.violation}"
        counts.update(dict(outcome.counts))
    assert counts["restored a snapshot"] > len(SEEDS) / 2, "hardly any began with a snapshot"


def test_a_run_is_the_same_with_snapshots() -> None:
    seed = SEEDS[0]
    without = simulate(draw(seed))
    with_snapshots = simulate(draw(seed), Parts(snapshot_every=EVERY))
    assert with_snapshots.trace_hash == without.trace_hash
