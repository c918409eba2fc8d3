"""Asynchronous successive halving and Hyperband: the rungs of a trial, and who passes one.

Rung k of bracket b lies at `min_steps * factor ** (b + k)` steps. Sources: Li et al., "A System for
Massively Parallel Hyperparameter Tuning" (2018) and "Hyperband" (2016). A trial is stopped
exactly where Optuna's SuccessiveHalvingPruner and HyperbandPruner would prune it.
"""

from __future__ import annotations

import math
from binascii import crc32
from bisect import bisect_left
from collections.abc import Callable, Sequence

from gangline_schemas.study_file import Asha, Hyperband
from gangline_studies.core.state import Ranked

Rungs = Asha | Hyperband


def rung_step(stopping: Rungs, bracket: int, rung: int) -> int:
    """The steps at which a rung lies."""
    return stopping.min_steps * int(stopping.factor ** (bracket + rung))


def brackets(stopping: Hyperband) -> int:
    """How many brackets there are."""
    return math.floor(math.log(stopping.max_steps / stopping.min_steps, stopping.factor)) + 1


def bracket_of(stopping: Hyperband, study_id: str, number: int) -> int:
    """The bracket of a trial: by its number's hash, in proportion to the brackets' budgets."""
    count = brackets(stopping)
    budgets = [
        math.ceil(count * stopping.factor ** (count - 1 - each) / (count - each))
        for each in range(count)
    ]
    left = crc32(f"{study_id}_{number}".encode()) % sum(budgets)
    for bracket, budget in enumerate(budgets):
        left -= budget
        if left < 0:
            return bracket
    raise AssertionError("the budgets hold every remainder")


def is_among_best(ranked: Ranked, held: Sequence[Ranked], factor: int) -> bool:
    """Whether a new value is among the best 1/factor of its rung.

    `held` are the others' values, sorted. Of fewer than `factor` values the best one is.
    """
    better = bisect_left(held, (ranked[0], -1))
    return better <= max((len(held) + 1) // factor - 1, 0)


def is_promotable(ranked: Ranked, held: Sequence[Ranked], factor: int) -> bool:
    """Like `is_among_best`, but of fewer than `factor` values none is, and numbers break ties."""
    return bisect_left(held, ranked) < (len(held) + 1) // factor


def climb(
    stopping: Rungs,
    held: Callable[[int], Sequence[Ranked]],
    bracket: int,
    rung: int,
    step: int,
    ranked: Ranked,
    *,
    through: bool = False,
) -> tuple[tuple[int, ...], bool]:
    """The rungs that a report reaches, and whether the trial passed all of them.

    `rung`: the next one of the trial; `held`: the values of others by rung; `through`: it does not
    stop at a rung that it does not pass. Cost: O(log steps).
    """
    pauses = isinstance(stopping, Asha) and stopping.mode == "promote"
    passes = is_promotable if pauses else is_among_best
    reached: list[int] = []
    while True:
        lies_at = rung_step(stopping, bracket, rung)
        if step < lies_at or (stopping.max_steps is not None and lies_at >= stopping.max_steps):
            return tuple(reached), True
        reached.append(rung)
        if not (through or passes(ranked, held(rung), stopping.factor)):
            return tuple(reached), False
        rung += 1


def promotable(held: Sequence[Ranked], factor: int) -> Sequence[Ranked]:
    """The best 1/factor of a rung, rounded down."""
    return held[: len(held) // factor]
