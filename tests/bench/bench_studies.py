"""Studies in virtual time over learning curves of 400 real runs.

The curves (data/digits_curves.npz) are 400 configurations of a small network on scikit-learn's
digits, 81 units of training each. 16 gangs train; the decider and the samplers are the service's
own. A study is compared at an equal end, the mean final rank that 54 full random trials reach, over
the GPU time of these. `*_gpu_time`: until a trial has passed the last rung that ends so well, and
its own remaining units. `*_completed`: until it has ended, while all others use GPUs too; 16 gangs
need 30 % of the whole time for their first complete trial. `*_whole`: all GPU time of a study with
as many trials as it needs, to the end of the last one; `*_trials`: their number.

A whole study has the trials that were found to be enough (`METHODS`). If they no longer are, more
are searched for. With --quick or GANGLINE_BENCH_FEWEST=1 also fewer, which takes about eight times
as long.

- `asha`: stop, min 3; `promote`: the same with pauses; `promote_early`: min 1; `hyperband`: min 1;
  all with random points.
- `tpe_asha`, `tpe_promote`: TPE with stopping and with pauses; each suggestion is the nearest
  configuration that is left.
- `late_binding`: completed trials until TPE's mean best rank is that of 60 trials, with twice as
  many trials as gangs so that one always waits, over those of an empty queue. `early_binding`: 16
  wait, and none is withdrawn. A gang that is free goes to the trial that waits in the same cycle.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from harness import Context, Result

from gangline_bus.decision import Decision
from gangline_schemas.events.studies import (
    TrialCompleted,
    TrialMeasured,
    TrialPaused,
    TrialPromoted,
    TrialProposed,
    TrialPruned,
    TrialWithdrawn,
)
from gangline_schemas.study_file import StudySpec
from gangline_schemas.study_space import Parameters
from gangline_studies.core import advance
from gangline_studies.core.suggesting import Ask, Suggestion
from support.harnesses.study_world import Fate, StudyWorld

DATA = Path(__file__).parent / "data" / "digits_curves.npz"
UNITS, GANGS, FULL = 81, 16, 54
NUMBERS = {"lr": True, "mom": False, "wd": True, "init": True}
CHOICES = ("drop", "width", "depth", "batch", "opt", "sched", "warm")
Line = list[tuple[float, int]]
"""GPU times in units, each with the final rank of a trial."""
LAST_RUNG = 27
_RUNGS = {"min_steps": 3, "max_steps": UNITS}
_PROMOTE = {"kind": "asha", "mode": "promote", **_RUNGS}
METHODS: list[tuple[str, Any, bool, float, int]] = [
    ("asha", {"kind": "asha", **_RUNGS}, False, 0.8, 144),
    ("promote", _PROMOTE, False, 0.8, 109),
    ("promote_early", {**_PROMOTE, "min_steps": 1}, False, 0.8, 0),
    ("hyperband", {"kind": "hyperband", "min_steps": 1, "max_steps": UNITS}, False, 0.9, 156),
    ("tpe_asha", {"kind": "asha", **_RUNGS}, True, 0.6, 112),
    ("tpe_promote", _PROMOTE, True, 0.6, 84),
]
"""Each with a share of the whole time that is enough for it, and the trials of a whole study; 0:
none is measured."""
FEWEST = bool(os.environ.get("GANGLINE_BENCH_FEWEST"))


@dataclass
class Found:
    """Trials that passed the last rung, with their own remaining units; and completed ones."""

    known: Line = field(default_factory=list)
    completed: Line = field(default_factory=list)
    ranks: list[int] = field(default_factory=list)
    spent: float = 0.0
    """GPU time of the study when it has ended, in units."""


class Table:
    """The curves: `loss` (400, 81), `rank` of each configuration at the end, 1 is the best."""

    def __init__(self) -> None:
        data = np.load(DATA, allow_pickle=False)
        self.loss = data["loss"]
        self.configs: list[dict[str, Any]] = json.loads(str(data["cfg"]))
        self.rank = np.argsort(np.argsort(self.loss[:, -1])) + 1
        self.space: dict[str, Any] = {}
        for name, log in NUMBERS.items():
            held = [each[name] for each in self.configs]
            bounds = {"low": min(held), "high": max(held)}
            self.space[name] = {"type": "float", "log": log, **bounds}
        for name in CHOICES:
            held = sorted({each[name] for each in self.configs})
            self.space[name] = {"type": "choice", "values": held}
        self.points = np.array([self._point(each) for each in self.configs])

    def _point(self, config: Parameters) -> list[float]:
        found = []
        for name, log in NUMBERS.items():
            low, high, value = self.space[name]["low"], self.space[name]["high"], config[name]
            if log:
                low, high, value = np.log(low), np.log(high), np.log(value)
            found.append((value - low) / (high - low))
        for name in CHOICES:
            found += [0.5 * (config[name] == each) for each in self.space[name]["values"]]
        return found

    def nearest(self, config: Parameters, used: set[int]) -> int:
        """The configuration that is left and nearest."""
        distance = ((self.points - np.array(self._point(config))) ** 2).sum(axis=1)
        distance[[*used]] = np.inf
        return int(distance.argmin())


def run_study(
    table: Table,
    seed: int,
    stopping: Any,
    *,
    tpe: bool,
    budget: float | None = None,
    trials: int = 400,
    parallel: int = GANGS,
    ahead: int = 1,
    jitter: bool = False,
) -> Found:
    """A study's trials that were found good."""
    order = random.Random(seed).sample(range(400), 400)
    chosen: dict[str, int] = {}
    used: set[int] = set()
    source = random.Random(seed + 1)

    def program(parameters: Parameters) -> Fate:
        key = json.dumps(parameters, sort_keys=True)
        if key not in chosen:
            at = table.nearest(parameters, used) if tpe else int(parameters["config"])  # type: ignore[arg-type]
            used.add(at)
            chosen[key] = at
        pace = source.uniform(0.7, 1.3) if jitter else 1.0
        return Fate([float(each) for each in table.loss[chosen[key]]], pace=pace)

    def given(_key: str, ask: object) -> object:
        assert isinstance(ask, Ask)
        point = {"config": order[ask.number % 400]}
        return Suggestion(ask.study_id, ask.number, point, "random", ask.results)

    spec = StudySpec.model_validate({
        "name": "s", "team": "nlp", "objective": {"metric": "loss"}, "seed": seed,
        "space": table.space if tpe else {"config": {"type": "int", "low": 0, "high": 399}},
        "sampler": "tpe" if tpe else "random", "stopping": stopping,
        "limits": {"trials": trials, "parallel": parallel, "ahead": ahead,
                   "gpu_hours": None if budget is None else budget / 60},
        "job": {"run": "x", "resources": {"gpus": 1}},
    })  # fmt: skip
    world = StudyWorld(
        program, gangs=GANGS, unit_s=60, tick_s=30, checked=False, sampler=None if tpe else given
    )
    look = _GoodTrials(table, chosen, used, stops=stopping["kind"] != "none")
    world.after.append(look)
    world.submit("s", spec)
    world.run()
    look.found.spent = world.state.studies["s"].gpu_seconds / world.unit_s
    return look.found


class _GoodTrials:
    """Notes the trials that are found good, after each decision."""

    def __init__(
        self, table: Table, chosen: dict[str, int], used: set[int], *, stops: bool
    ) -> None:
        self._table, self._chosen, self._used, self._stops = table, chosen, used, stops
        self._proposed: dict[int, str] = {}
        self.found = Found()

    def __call__(self, world: StudyWorld, decisions: list[Decision]) -> None:
        events: list[Any] = [each.event for each in decisions]
        for event in events:
            if isinstance(event, TrialProposed):
                self._proposed[event.number] = json.dumps(event.parameters, sort_keys=True)
            elif isinstance(event, TrialWithdrawn):  # its configuration was not trained
                self._used.discard(self._chosen.pop(self._proposed[event.number]))
        left = {each.number for each in events if isinstance(each, TrialPruned | TrialPaused)}
        spent = advance.spent_gpu_hours(world.state, "s", world.now) * 60
        found = self.found
        for event in events:
            last = isinstance(event, TrialMeasured) and event.step == LAST_RUNG
            if isinstance(event, TrialPromoted):
                last = world.state.trials["s", event.number].step == LAST_RUNG
            if isinstance(event, TrialCompleted):
                found.ranks.append(self._rank_of(event.number))
                found.completed.append((spent, found.ranks[-1]))
                found.known.append((spent, found.ranks[-1]))
            elif last and event.number not in left and self._stops:
                found.known.append((spent + UNITS - LAST_RUNG, self._rank_of(event.number)))

    def _rank_of(self, number: int) -> int:
        return int(self._table.rank[self._chosen[self._proposed[number]]])


def time_to(lines: Sequence[Line], goal: float) -> float:
    """GPU time at which the mean best rank is as good as the goal; a study without one has 400."""
    for at in sorted({when for line in lines for when, _ in line}):
        best = [min((rank for when, rank in line if when <= at), default=400) for line in lines]
        if fmean(best) <= goal:
            return at
    return float("inf")


def trials_to(runs: Sequence[list[int]], goal: float) -> float:
    """Completed trials after which the mean best rank is as good as the goal."""
    for count in range(1, min(map(len, runs)) + 1):
        if fmean(min(ranks[:count]) for ranks in runs) <= goal:
            return count
    return float("inf")


def early_stopping(context: Context, table: Table, seeds: int) -> list[Result]:
    """GPU time at an equal final rank against full random trials."""
    orders = [random.Random(seed).sample(range(400), 400) for seed in range(seeds)]
    goal = fmean(min(int(table.rank[at]) for at in order[:FULL]) for order in orders)
    whole = FULL * UNITS
    found = []
    for name, stopping, tpe, share, enough in METHODS:
        context.say(f"studies: {name}, {seeds} seeds")
        runs = [
            run_study(table, seed, stopping, tpe=tpe, budget=share * whole) for seed in range(seeds)
        ]
        known = time_to([each.known for each in runs], goal) / whole
        done = time_to([each.completed for each in runs], goal) / whole
        found.append(context.result(f"{name}_gpu_time", known, "of random"))
        found.append(context.result(f"{name}_completed", done, "of random"))
        if enough:
            fewer = FEWEST or context.quick  # with other seeds others are enough
            trials, spent = whole_study(table, stopping, seeds, goal, enough, tpe=tpe, fewer=fewer)
            found.append(context.result(f"{name}_whole", spent / whole, "of random"))
            found.append(context.result(f"{name}_trials", trials, "trials"))
    return found


def whole_study(
    table: Table, stopping: Any, seeds: int, goal: float, enough: int, *, tpe: bool, fewer: bool
) -> tuple[int, float]:
    """Trials of which the mean best rank is as good as the goal, and their GPU time.

    `enough` trials are tried first; fewer only if that is asked for, more if these are too few.
    """

    def of(trials: int) -> tuple[float, float]:
        runs = [run_study(table, seed, stopping, tpe=tpe, trials=trials) for seed in range(seeds)]
        best = fmean(min(run.ranks, default=400) for run in runs)
        return best, fmean(run.spent for run in runs)

    fewest, most, spent = GANGS, 400, float("inf")
    best, took = of(enough)
    if best <= goal:
        fewest, most, spent = fewest if fewer else enough, enough, took
    else:
        fewest = enough + 1
    while fewest < most:
        middle = (fewest + most) // 2
        best, took = of(middle)
        if best <= goal:
            most, spent = middle, took
        else:
            fewest = middle + 1
    return most, spent


def binding(context: Context, table: Table, seeds: int) -> list[Result]:
    """Trials to the same best with trials that wait, over an empty queue."""
    none = {"kind": "none"}

    def runs(**limits: Any) -> list[list[int]]:
        return [
            run_study(table, seed, none, tpe=True, trials=110, jitter=True, **limits).ranks
            for seed in range(seeds)
        ]

    context.say(f"studies: trials that wait, {seeds} seeds")
    empty = runs()
    goal = fmean(min(ranks[:60]) for ranks in empty)
    base = trials_to(empty, goal)
    late = trials_to(runs(parallel=2 * GANGS), goal)
    kept, advance.FROM_RESULTS = advance.FROM_RESULTS, frozenset()  # type: ignore[misc]
    early = trials_to(runs(parallel=2 * GANGS, ahead=GANGS), goal)
    advance.FROM_RESULTS = kept  # type: ignore[misc]
    return [
        context.result("late_binding", late / base, "trials"),
        context.result("early_binding", early / base, "trials"),
    ]


def run(context: Context) -> list[Result]:
    """All of it; with --quick fewer seeds."""
    table = Table()
    seeds = 6 if context.quick else 60
    return [
        *early_stopping(context, table, seeds),
        *binding(context, table, max(seeds // 2, 4)),
    ]
