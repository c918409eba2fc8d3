"""Effective training time: the share of wall time that became progress. Times are in seconds.

A gang begins a save each `interval_s`, counted from one begin to the next, as the trainer does. A
save costs training `save_s`, and an attempt may start from it `commit_s` after its begin. Times
between failures are exponentially distributed. A failure may also come during a start, which then
begins again. After `detect_s + restart_s` the gang takes its next step, from the last save that
counts.

`expected` is exact for that. Let t be the time from a start to the failure, P the interval, c the
cost of a save, L the commit's delay, and M the mean time to failure. A start keeps n P - (n - 1) c
of its work, with n = floor((t - L) / P). With q = exp(-P / M) the averages are

    kept = exp(-L / M) (P - c q) q / (1 - q)      wall = M exp((detect + restart) / M)

and the ratio is kept / wall. With L = c and intervals counted between saves it is Daly's ("A higher
order estimate of the optimum checkpoint interval for restart dumps", 2006). `replay` takes the
failures as they come and computes the interval at each start, so the advice may learn from them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

from gangline_checkpoints.core.policy.interval import (
    Failures,
    Save,
    advise_at,
    costs_of,
    failure_rate,
)

Interval = Callable[[int, float], float]
"""The interval that an attempt saves at, of (failures so far, wall time of all that so far)."""


@dataclass(frozen=True, slots=True)
class Costs:
    """The costs of failures and saves for one gang; the module explains each."""

    mttf_s: float
    save_s: float
    commit_s: float
    detect_s: float
    restart_s: float

    @property
    def down_s(self) -> float:
        """From a failure to the next step."""
        return self.detect_s + self.restart_s


@dataclass(frozen=True, slots=True)
class Parts:
    """Where wall time went: into progress, saves, work that was done again, and standing still."""

    useful_s: float = 0.0
    saving_s: float = 0.0
    lost_s: float = 0.0
    detecting_s: float = 0.0
    restarting_s: float = 0.0

    @property
    def wall_s(self) -> float:
        """All of it."""
        return self.useful_s + self.saving_s + self.lost_s + self.detecting_s + self.restarting_s

    @property
    def ettr(self) -> float:
        """The share that became progress."""
        return self.useful_s / self.wall_s


def advised(saves: Sequence[Save], gpus: int) -> Interval:
    """The service's own advice to a gang that is alone on its cluster: it learns as it fails."""
    cost_s, busy_s = costs_of(saves)

    def interval(failures: int, ran_s: float) -> float:
        seen = Failures(failures, ran_s * gpus / 3600)
        return advise_at(cost_s, busy_s, gpus, failure_rate(seen, seen)).interval_s

    return interval


def expected(costs: Costs, interval_s: float) -> Parts:
    """The mean parts of the wall time from one start of training to the next.

    Raises ValueError unless the interval is longer than a save's cost.
    """
    _check(costs, interval_s)
    mttf_s = costs.mttf_s
    ends = -math.expm1(-interval_s / mttf_s)  # that it fails within an interval
    lasts = math.exp(-interval_s / mttf_s)
    saves = lasts / ends  # that are begun before the failure
    kept_s = math.exp(-costs.commit_s / mttf_s) * saves * (interval_s - costs.save_s * lasts)
    saving_s = -mttf_s * math.expm1(-costs.save_s / mttf_s) * saves
    restarting_s = mttf_s * math.expm1(costs.restart_s / mttf_s)
    down_s = mttf_s * math.expm1(costs.down_s / mttf_s)
    lost_s = max(0.0, mttf_s - kept_s - saving_s)
    return Parts(kept_s, saving_s, lost_s, down_s - restarting_s, restarting_s)


def longest_down_s(costs: Costs, interval_s: float, ettr: float) -> float | None:
    """How long a failure may stop the gang for this ratio; None: it is not reached at all."""
    parts = expected(costs, interval_s)
    running = parts.useful_s / costs.mttf_s
    return costs.mttf_s * math.log(running / ettr) if running >= ettr else None


def replay(costs: Costs, interval: Interval, gaps: Iterable[float], rest_s: float = 0.0) -> Parts:
    """The parts of a run that fails after each of these gaps, counted from the failure before.

    `rest_s` is the time after the last failure: what was computed in it is not lost.
    """
    useful_s = saving_s = lost_s = detecting_s = restarting_s = 0.0
    down_s, ran_s, failures = 0.0, 0.0, 0
    for length_s, failed in chain(((gap_s, True) for gap_s in gaps), [(rest_s, False)]):
        stopped_s = min(length_s, down_s)
        noticing_s = min(stopped_s, costs.detect_s)
        detecting_s += noticing_s
        restarting_s += stopped_s - noticing_s
        trained_s = length_s - down_s
        if trained_s > 0:
            kept = _trained(costs, interval(failures, ran_s), trained_s, failed=failed)
            useful_s, saving_s, lost_s = useful_s + kept[0], saving_s + kept[1], lost_s + kept[2]
        ran_s, failures, down_s = ran_s + length_s, failures + 1, costs.down_s
    return Parts(useful_s, saving_s, lost_s, detecting_s, restarting_s)


def _trained(
    costs: Costs, interval_s: float, trained_s: float, *, failed: bool
) -> tuple[float, float, float]:
    """Seconds useful, saving and lost, from a start to a failure or to the end of the run."""
    _check(costs, interval_s)
    begun = math.floor(trained_s / interval_s)
    saving_s = min(trained_s - begun * interval_s, costs.save_s) if begun else 0.0
    saving_s += max(0, begun - 1) * costs.save_s
    worked_s = trained_s - saving_s
    kept_s = worked_s
    if failed:
        counting = max(0, math.floor((trained_s - costs.commit_s) / interval_s))
        kept_s = counting * interval_s - max(0, counting - 1) * costs.save_s
    return kept_s, saving_s, worked_s - kept_s


def _check(costs: Costs, interval_s: float) -> None:
    if interval_s <= costs.save_s:
        raise ValueError(f"an interval of {interval_s:g} s is not above a save's {costs.save_s:g}")
