"""Who is slow: ranks that work longer in a step than they should, scored at Ticks.

What a rank works in a step, before it waits for others, is told by its heartbeats (`busy_s`): in a
gang everybody waits for the slowest, so whole steps are equally long and tell nothing.

1. Relative score: the gang's median work / its own. Of two ranks the quicker one is the median.
2. Individual score: its own least work in this attempt / what it does now. It counts only while at
   most half of the gang is slower than it was: else the work has changed, and nobody is to blame.
3. A rank straggles when a score is below `straggler_below` for `straggler_after_s`, and the
   difference is not within `LEAST_S`, which is noise on any machine.
4. Judged is only what ranks that train have just said; who falls silent begins anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from statistics import median, median_low
from typing import Literal

from gangline_faults.model import HeardGang
from gangline_faults.policy.timing import Timing
from gangline_schemas.events.workers import RankActivity

LEAST_S = 0.005
"""A rank that loses less in a step than this holds nobody up."""


@dataclass(frozen=True, slots=True)
class Score:
    """One rank. 1 is as usual, 0.5: it takes twice as long."""

    rank: int
    node_id: str
    busy_s: float
    gang_s: float
    best_s: float

    @property
    def relative(self) -> float:
        """Against its gang."""
        return _ratio(self.gang_s, self.busy_s)

    @property
    def individual(self) -> float:
        """Against itself."""
        return _ratio(self.best_s, self.busy_s)


@dataclass(frozen=True, slots=True)
class Straggler:
    """A rank that is slow since then, by which score, and the score of its host."""

    score: Score
    against: Literal["gang", "itself"]
    host: float
    since: datetime

    @property
    def usual_s(self) -> float:
        """What it is compared to."""
        return self.score.gang_s if self.against == "gang" else self.score.best_s


def score(heard: HeardGang, now: datetime, timing: Timing) -> tuple[Score, ...]:
    """The scores of the ranks that train and have just been heard, by rank."""
    told = sorted(
        (status.rank, node_id, status.busy_s)
        for node_id, (at, ranks) in heard.ranks.items()
        if (now - at).total_seconds() < timing.stale_s
        for status in ranks
        if status.busy_s is not None and status.activity in {None, RankActivity.TRAINING}
    )
    if not told:
        return ()
    gang_s = median_low(busy_s for _, _, busy_s in told)
    return tuple(
        Score(rank, node_id, busy_s, gang_s, min(busy_s, heard.best_s.get(rank, busy_s)))
        for rank, node_id, busy_s in told
    )


def host_scores(scores: Iterable[Score]) -> dict[str, float]:
    """Of each node the median of its ranks' relative scores."""
    by_node: dict[str, list[float]] = {}
    for one in scores:
        by_node.setdefault(one.node_id, []).append(one.relative)
    return {node_id: median(found) for node_id, found in by_node.items()}


def note_slow(heard: HeardGang, now: datetime, timing: Timing) -> tuple[Straggler, ...]:
    """Note who is slow since when, and give those that are for long enough, by rank.

    Changes what is heard of the gang: each rank's best, and since when it is slow.
    """
    scores = score(heard, now, timing)
    slow = _slow(scores, timing)
    heard.best_s |= {one.rank: one.best_s for one in scores}
    heard.slow_since = {rank: heard.slow_since.get(rank, now) for rank in sorted(slow)}
    hosts = host_scores(scores)
    return tuple(
        Straggler(one, slow[one.rank], hosts[one.node_id], heard.slow_since[one.rank])
        for one in scores
        if one.rank in slow
        and (now - heard.slow_since[one.rank]).total_seconds() >= timing.straggler_after_s
    )


def _slow(scores: tuple[Score, ...], timing: Timing) -> Mapping[int, Literal["gang", "itself"]]:
    """The slow ones among two or more ranks, and against whom."""
    if len(scores) == 1:  # it has nobody to hold up, and its work may have changed
        return {}
    found: dict[int, Literal["gang", "itself"]] = {}
    worse = [one for one in scores if _is_low(one.individual, one.busy_s - one.best_s, timing)]
    if 2 * len(worse) <= len(scores):
        found |= {one.rank: "itself" for one in worse}
    for one in scores:
        if _is_low(one.relative, one.busy_s - one.gang_s, timing):
            found[one.rank] = "gang"
    return found


def _is_low(value: float, lost_s: float, timing: Timing) -> bool:
    return value < timing.straggler_below and lost_s >= LEAST_S


def _ratio(usual_s: float, busy_s: float) -> float:
    return usual_s / busy_s if busy_s > 0 else 1.0


def describe(straggler: Straggler) -> str:
    """One sentence for users."""
    one = straggler.score
    against = "its gang's median is" if straggler.against == "gang" else "its own best was"
    return (
        f"rank {one.rank} on {one.node_id} works {one.busy_s:.3f} s a step before it waits for "
        f"others; {against} {straggler.usual_s:.3f} s"
    )
