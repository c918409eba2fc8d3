"""Seeds of the simulator in which every job leaves out of its saves what did not change."""

from __future__ import annotations

import os
from collections import Counter

from gangsim.draw import draw
from gangsim.world import simulate

SEEDS = int(os.environ.get("GANGLINE_SIMULATED_SEEDS", "10"))


def test_attempts_start_from_what_was_saved_wherever_its_chunks_lie() -> None:
    failed = []
    counts: Counter[str] = Counter()
    for seed in range(SEEDS):
        outcome = simulate(draw(seed).incremental(3))
        counts.update(dict(outcome.counts))
        if outcome.violation:
            failed.append(f"seed {seed}: {outcome.violation}")
    assert not failed, "\n".join(failed)
    assert counts["referred"] > SEEDS / 2, "few attempts started from chunks of earlier steps"
