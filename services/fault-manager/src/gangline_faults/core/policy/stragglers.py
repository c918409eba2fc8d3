"""Stragglers: ranks that work longer in a step than they should, scored at Ticks.

Heartbeats report a rank's work in a step, before it waits for others (`busy_s`). All ranks of a
gang wait for the slowest one, so whole steps are equally long and show nothing.

1. Relative score: the gang's median work / its own. Of two ranks the quicker one is the median.
2. Individual score: its own least work in this attempt / its work now. It counts only while at most
   half of the gang is slower than it was: else the work has changed, and no rank is to blame.
3. A rank straggles when a score is below `straggler_below` for `straggler_after_s`, and the
   difference is not within `LEAST_S`, which is noise on any machine.
4. Only recent heartbeats of ranks that train are judged; a rank that fell silent starts over.

Cost: O(ranks with heartbeats), half a microsecond each.
"""

from __future__ import annotations

from datetime import datetime
from statistics import median, median_low

from gangline_faults.core.model import TINY_S, Against, GangReports, Score, Straggler, relative
from gangline_faults.core.policy.timing import Timing
from gangline_schemas.events.heartbeats import RankActivity

LEAST_S = 0.005
"""A rank that loses less in a step than this delays no other."""

_TRAINS = frozenset({None, RankActivity.TRAINING})


def note_slow(reports: GangReports, now: datetime, timing: Timing) -> None:
    """Note each rank's best, and since when some are slow, with their hosts' scores."""
    reported = _reported(reports, now, timing)
    slow = _slow(reported, reports, timing)
    reports.slow = {
        rank: Straggler(score, against, _host(reported, score), _since(reports, rank, now))
        for rank, (score, against) in sorted(slow.items())
    }


def stragglers(reports: GangReports, now: datetime, timing: Timing) -> tuple[Straggler, ...]:
    """Those that are slow for long enough, by rank, as they were noted last."""
    return tuple(
        straggler
        for straggler in reports.slow.values()
        if (now - straggler.since).total_seconds() >= timing.straggler_after_s
    )


def _since(reports: GangReports, rank: int, now: datetime) -> datetime:
    known = reports.slow.get(rank)
    return now if known is None else known.since


def _host(reported: list[tuple[int, str, float]], score: Score) -> float:
    """How slow its host is."""
    there = [relative(score.gang_s, own) for _, node, own in reported if node == score.node_id]
    return median(there)


def _reported(reports: GangReports, now: datetime, timing: Timing) -> list[tuple[int, str, float]]:
    """Rank, node and work of the ranks that train and have a recent heartbeat."""
    return [
        (status.rank, node_id, status.busy_s)
        for node_id, (at, ranks) in reports.ranks.items()
        if (now - at).total_seconds() < timing.stale_s
        for status in ranks
        if status.busy_s is not None and status.busy_s >= TINY_S and status.activity in _TRAINS
    ]


def _slow(
    reported: list[tuple[int, str, float]], reports: GangReports, timing: Timing
) -> dict[int, tuple[Score, Against]]:
    """The slow ones among two or more ranks, and the comparison that shows it."""
    if len(reported) <= 1:  # a single rank delays no other, and its work may have changed
        return {}
    gang_s = median_low(busy_s for _, _, busy_s in reported)
    below, best = timing.straggler_below, reports.best_s
    found: dict[int, tuple[Score, Against]] = {}
    worse: dict[int, tuple[Score, Against]] = {}
    for rank, node_id, busy_s in reported:
        best_s = best[rank] = min(busy_s, best.get(rank, busy_s))
        usual_s = below * busy_s
        if gang_s < usual_s and busy_s - gang_s >= LEAST_S:
            found[rank] = (Score(rank, node_id, busy_s, gang_s, best_s), "gang")
        if best_s < usual_s and busy_s - best_s >= LEAST_S:
            worse[rank] = (Score(rank, node_id, busy_s, gang_s, best_s), "itself")
    return worse | found if 2 * len(worse) <= len(reported) else found


def describe(straggler: Straggler) -> str:
    """One sentence for users."""
    one = straggler.score
    against = "its gang's median is" if straggler.against == "gang" else "its own best was"
    return (
        f"rank {one.rank} on {one.node_id} works {one.busy_s:.3f} s a step before it waits for "
        f"others; {against} {straggler.usual_s:.3f} s"
    )
