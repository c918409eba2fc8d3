"""The rungs of a study stop a trial exactly where Optuna's pruners would."""

from __future__ import annotations

import math
import random
from bisect import insort

import optuna
import pytest
from optuna.pruners import BasePruner, HyperbandPruner, SuccessiveHalvingPruner
from optuna.trial import TrialState

from gangline_schemas.study_file import Asha, Hyperband
from gangline_studies.core.policy import rungs
from gangline_studies.core.state import Ranked

DECISIONS = 7000
"""By each case: 28,000 in all."""
CASES = [
    (Asha(kind="asha", min_steps=1, factor=3), "minimize"),
    (Asha(kind="asha", min_steps=3, factor=2), "maximize"),
    (Hyperband(kind="hyperband", min_steps=1, max_steps=81, factor=3), "minimize"),
    (Hyperband(kind="hyperband", min_steps=2, max_steps=60, factor=4), "maximize"),
]


def pruner(stopping: rungs.Rungs) -> BasePruner:
    if isinstance(stopping, Hyperband):
        return HyperbandPruner(stopping.min_steps, stopping.max_steps, stopping.factor)
    return SuccessiveHalvingPruner(stopping.min_steps, stopping.factor, 0)


@pytest.mark.parametrize(("stopping", "direction"), CASES)
def test_each_decision_is_that_of_optuna(stopping: rungs.Rungs, direction: str) -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    source = random.Random(7)
    sign = 1 if direction == "minimize" else -1
    made = 0
    while made < DECISIONS:
        study = optuna.create_study(
            direction=direction, pruner=pruner(stopping), study_name=f"s{made}"
        )
        held: dict[tuple[int, int], list[Ranked]] = {}
        running: dict[optuna.Trial, tuple[int, int, int]] = {}  # step, bracket, rung
        for _ in range(600):
            if len(running) < 8:
                trial = study.ask()
                bracket = 0
                if isinstance(stopping, Hyperband):
                    bracket = rungs.bracket_of(stopping, study.study_name, trial.number)
                running[trial] = (0, bracket, 0)
            trial = source.choice([*running])
            step, bracket, rung = running[trial]
            step += source.choice((1, 1, 1, 2, 9))
            if step >= (stopping.max_steps or 81):
                study.tell(trial, 0.0)
                del running[trial]
                continue
            value = source.choice((source.gauss(0, 1), round(source.gauss(0, 1))))
            trial.report(value, step)
            reached, passes = rungs.climb(
                stopping,
                lambda at, b=bracket, known=held: known.get((b, at), []),
                bracket, rung, step, (sign * value, trial.number),
            )  # fmt: skip
            for at in reached:
                insort(held.setdefault((bracket, at), []), (sign * value, trial.number))
            made += 1
            assert trial.should_prune() is not passes, (trial.number, step, value)
            running[trial] = (step, bracket, rung + len(reached))
            if not passes:
                study.tell(trial, state=TrialState.PRUNED)
                del running[trial]


def test_brackets_share_trials_by_their_budgets() -> None:
    stopping = Hyperband(kind="hyperband", min_steps=1, max_steps=81, factor=3)
    found = [rungs.bracket_of(stopping, "s", number) for number in range(4000)]
    assert rungs.brackets(stopping) == 5
    shares = [found.count(bracket) / len(found) for bracket in range(5)]
    assert shares == sorted(shares, reverse=True)
    assert math.isclose(shares[0], 81 / 143, abs_tol=0.03)


def test_no_rung_lies_at_the_last_step() -> None:
    stopping = Asha(kind="asha", min_steps=1, max_steps=9, factor=3)
    worst = rungs.climb(stopping, lambda _: [(0.0, 1)] * 9, 0, 2, 9, (5.0, 2))
    assert worst == ((), True)
