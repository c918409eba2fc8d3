"""Hung gangs: no rank makes progress, for longer than the gang's own steps explain.

1. The limit of a rank that trains is `max(hang_min_s, 4 x the 99th percentile of its steps)`. If it
   does something else or has too few steps, the limit is `hang_slow_s`. A rank that never reports
   its activity has the longer of both, and none before its steps are known.
2. Of ranks that train, those that never report a step are judged by the others' steps: often rank 0
   alone reports.
3. A gang hangs when all its ranks with a limit have been quiet for longer. A rank that saves or
   evaluates alone delays the others, and waiting cannot distinguish it from a hung one.
4. A gang is judged only by recent heartbeats of all its nodes. A silent node is judged by its
   silence (silence.py). Heartbeats from before this process stood still count for no gang.
5. A node can send heartbeats without the gang: its ranks all ended well, or it has yet to start
   them. If other nodes have steps, it is the former, and the gang is judged without it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from gangline_faults.core.model import Gang, GangReports, Liveness
from gangline_faults.core.policy.timing import Timing
from gangline_schemas.events.heartbeats import GangStatus, RankActivity, RankStatus


@dataclass(frozen=True, slots=True)
class Hang:
    """The rank of a hung gang that was quiet the longest, and for how long it might have been."""

    rank: int
    node_id: str
    quiet_s: float
    limit_s: float
    status: RankStatus


def note_gangs(
    reports: dict[str, GangReports],
    gangs: Mapping[str, Gang],
    node_id: str,
    statuses: tuple[GangStatus, ...],
    now: datetime,
) -> None:
    """Keep what a node says of the live attempts."""
    for status in statuses:
        gang = gangs.get(status.job_id)
        if gang is None or gang.attempt != status.attempt or node_id not in gang.nodes:
            continue
        known = reports.get(status.job_id)
        if known is None or known.attempt != status.attempt:
            known = reports[status.job_id] = GangReports(status.attempt)
        known.ranks[node_id] = (now, status.ranks)
        if any(rank.trouble is not None for rank in status.ranks):
            known.troubled[node_id] = None
        else:
            known.troubled.pop(node_id, None)


def live_gangs(
    gangs: Mapping[str, Gang], liveness: Liveness
) -> Iterator[tuple[str, Gang, GangReports]]:
    """The live attempts with reports of their ranks, in the order of their first heartbeats."""
    for job_id, reports in liveness.gangs.items():
        gang = gangs.get(job_id)
        if gang is not None and not gang.failed and gang.attempt == reports.attempt:
            yield job_id, gang, reports


def find_hangs(
    gangs: Mapping[str, Gang], liveness: Liveness, now: datetime, timing: Timing
) -> dict[str, Hang]:
    """The hung gangs, by job id in order. Cost: O(ranks with heartbeats)."""
    found = {}
    for job_id, gang, reports in live_gangs(gangs, liveness):
        hang = _hang(gang, reports, liveness.seen, now, timing)
        if hang is not None:
            found[job_id] = hang
    return dict(sorted(found.items()))


def _hang(
    gang: Gang, reports: GangReports, seen: Mapping[str, datetime], now: datetime, timing: Timing
) -> Hang | None:
    longest: Hang | None = None
    without_it = False
    stands_for_all = _some_rank_steps(reports)
    for node_id in sorted(set(gang.nodes)):
        at, ranks = reports.ranks.get(node_id, (None, ()))
        if not _is_fresh(at, now, timing):
            if not _is_fresh(seen.get(node_id), now, timing):
                return None
            without_it = True
            continue
        if not ranks:
            return None
        for status in ranks:
            follows = stands_for_all and _trains(status) and status.step is None
            limit_s = None if follows else limit_of(status, timing)
            if limit_s is None or status.quiet_s is None:
                continue
            if status.quiet_s < limit_s:
                return None
            if longest is None or status.quiet_s > longest.quiet_s:
                longest = Hang(status.rank, node_id, status.quiet_s, limit_s, status)
    if without_it and (longest is None or longest.status.step_p99_s is None):
        return None
    return longest


def _some_rank_steps(reports: GangReports) -> bool:
    """Whether a rank trains of which it is known how long its steps take."""
    return any(
        _trains(status) and status.step_p99_s is not None
        for _, ranks in reports.ranks.values()
        for status in ranks
    )


def _trains(status: RankStatus) -> bool:
    return status.activity is RankActivity.TRAINING


def _is_fresh(at: datetime | None, now: datetime, timing: Timing) -> bool:
    return at is not None and (now - at).total_seconds() < timing.stale_s


def limit_of(status: RankStatus, timing: Timing) -> float | None:
    """For how many seconds a rank may be quiet; None: not known."""
    if status.step_p99_s is None:
        return None if status.activity is None else timing.hang_slow_s
    by_steps_s = max(timing.hang_min_s, timing.hang_factor * status.step_p99_s)
    if _trains(status):
        return by_steps_s
    return max(timing.hang_slow_s, by_steps_s)


def describe(hang: Hang) -> str:
    """One sentence for users."""
    status = hang.status
    at = "before its first step" if status.step is None else f"after step {status.step}"
    quiet = (
        f"no rank made progress: rank {hang.rank} on {hang.node_id} was quiet for "
        f"{hang.quiet_s:.0f} s"
    )
    if status.step_p99_s is None or status.activity is not RankActivity.TRAINING:
        doing = "" if status.activity is None else f" while {status.activity.value}"
        return f"{quiet} {at}{doing}; the limit is {hang.limit_s:.0f} s"
    return (
        f"{quiet} {at}; its steps take up to {status.step_p99_s:.2f} s, "
        f"and the limit is {hang.limit_s:.0f} s"
    )
