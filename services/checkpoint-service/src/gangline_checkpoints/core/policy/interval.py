"""How often a gang should save, from measured costs and failures. Times are in seconds.

**Failures** come at a rate per GPU-hour, and a gang of n GPUs fails n times as often. The rate of
the cluster has a Gamma prior worth one failure in 7.9 h of 1,024 GPUs. That is the mean time to
failure of such jobs on Meta's research clusters (Kokolis et al., "Revisiting Reliability in
Large-Scale Machine Learning Research Clusters", 2024). Failures of this cluster soon outweigh it. A
job's own rate has the cluster's as its prior, worth `OWN_WEIGHT` failures: a job that fails more
often than others saves more often.

A sign of a failure that a node reports makes a failure expected within the hour.

**The cost** of a save is the time for which training stands still, plus `OVERLAP` of the write, for
the steps that run beside it.

**The optimum** of both is Daly's ("A higher order estimate of the optimum checkpoint interval for
restart dumps", 2006); Young's is its first term.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median_low
from typing import Literal, NamedTuple

CEILING_S = 600.0
"""Never longer between two saves, unless the store is slow."""
LONGEST_S = 86_400.0
"""Never longer, however slow the store is: a day, the longest that a spec may say."""
FLOOR_S = 60.0
"""Never shorter: each save is some events in a log that is kept for ever."""
OVERLAP = 0.1
STORE_SHARE = 0.5
"""A job's saves keep the store busy for at most this share of the time."""
SUSPECTED_S = 3600.0
"""For so long after a sign of it a failure is expected, and it is expected within that time."""
CHANGE = 0.2
OWN_WEIGHT = 2.0
SAVES = 8
"""So many of the newest saves are the measure; their median counts."""
ENOUGH_SAVES = 2
"""One alone says little: the first has buffers to allocate."""
FORGET_GPU_HOURS = 1e6
"""When so much was seen, half of it is forgotten: 10 days of 4,000 GPUs."""


@dataclass(frozen=True, slots=True)
class Failures:
    """The number of gangs that failed and resumed, and their GPU-hours."""

    count: float = 0.0
    gpu_hours: float = 0.0

    def plus(self, other: Failures) -> Failures:
        """Both together; what was seen long ago fades."""
        count, hours = self.count + other.count, self.gpu_hours + other.gpu_hours
        fade = 0.5 if hours > FORGET_GPU_HOURS else 1.0
        return Failures(count * fade, hours * fade)


PRIOR = Failures(1.0, 7.9 * 1024)


class Save(NamedTuple):
    """The cost of one save: of its slowest rank, and of the service."""

    blocked_s: float
    write_s: float
    verify_s: float


@dataclass(frozen=True, slots=True)
class Advice:
    """The interval and the values that it follows from.

    `cost_s`: the cost of a save for training. `busy_s`: how long it keeps the store busy. `lost_s`:
    the expected cost of a failure: half an interval, and a save that was not committed.
    """

    interval_s: float
    limited_by: Literal["optimum", "ceiling", "floor", "storage"]
    cost_s: float
    busy_s: float
    mtbf_s: float
    lost_s: float


def failure_rate(cluster: Failures, job: Failures) -> float:
    """Failures per GPU-hour to expect of a job."""
    of_all = (PRIOR.count + cluster.count) / (PRIOR.gpu_hours + cluster.gpu_hours)
    return (OWN_WEIGHT + job.count) / (OWN_WEIGHT / of_all + job.gpu_hours)


def optimum_s(cost_s: float, mtbf_s: float) -> float:
    """Daly's interval between the end of a save and the next one's begin."""
    if cost_s >= 2 * mtbf_s:
        return mtbf_s
    ratio = cost_s / (2 * mtbf_s)
    return math.sqrt(2 * cost_s * mtbf_s) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - cost_s


def advise(
    saves: Sequence[Save], world_size: int, per_gpu_hour: float, *, suspected: bool = False
) -> Advice:
    """The advice from one or more saves of a gang and its failure rate.

    `suspected`: one of its nodes reported a sign of a failure.
    """
    return advise_at(*costs_of(saves), world_size, per_gpu_hour, suspected=suspected)


def costs_of(saves: Sequence[Save]) -> tuple[float, float]:
    """The cost of a save for training, and how long it keeps the store busy: the medians."""
    cost_s = median_low(save.blocked_s + OVERLAP * save.write_s for save in saves)
    return cost_s, median_low(save.write_s + save.verify_s for save in saves)


def advise_at(
    cost_s: float, busy_s: float, world_size: int, per_gpu_hour: float, *, suspected: bool = False
) -> Advice:
    """The advice where a save has these costs, see `advise`."""
    mtbf_s = 3600.0 / (per_gpu_hour * world_size)
    if suspected:
        mtbf_s = min(mtbf_s, SUSPECTED_S)
    interval_s, limited_by = _limited(optimum_s(cost_s, mtbf_s), busy_s / STORE_SHARE)
    rounded_s = float(math.ceil(interval_s))
    return Advice(rounded_s, limited_by, cost_s, busy_s, mtbf_s, rounded_s / 2 + busy_s)


def _limited(
    best_s: float, store_s: float
) -> tuple[float, Literal["optimum", "ceiling", "floor", "storage"]]:
    wanted_s = min(max(best_s, FLOOR_S), CEILING_S)
    if store_s > wanted_s:
        return min(store_s, LONGEST_S), "storage"
    if wanted_s == best_s:
        return best_s, "optimum"
    return wanted_s, "floor" if best_s < FLOOR_S else "ceiling"


def differs(advised_s: float, now_s: float) -> bool:
    """Whether it is worth saying again."""
    return abs(now_s - advised_s) > CHANGE * advised_s
