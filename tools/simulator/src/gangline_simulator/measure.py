"""The figures of a replay. Each figure says what it counts.

- JCT: from submission to end. Queue: the time of that in which the job had no GPUs.
- A percentile p of n values is the one at place floor(n p) of the sorted list.
- Makespan: from the first submission to the last end.
- Utilization: GPU-seconds allocated, over all GPUs x makespan.
- Fragmentation: of the GPU-seconds of pools in which a job waited, the share that was free on
  nodes that were partly used.
- GPU-hours lost: GPUs x (time between a stop's request and its end + what the restart added).
- Fairness: Jain's index (sum x)^2 / (n sum x^2) over the n teams: 1 when all are slowed down alike,
  1/n at worst. x is a team's total JCT over its total undisturbed run time.
- Large gangs: those above 32 GPUs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from gangline_simulator.ledger import Outcome, PoolResult

LARGE_GPUS = 32


@dataclass(frozen=True, slots=True)
class Measures:
    """The figures of one policy, times in seconds; see the module."""

    policy: str
    jobs: int
    jct_avg_s: float
    jct_p50_s: float
    jct_p99_s: float
    jct_p999_s: float
    queue_avg_s: float
    queue_p50_s: float
    queue_p99_s: float
    queue_p999_s: float
    makespan_s: float
    utilization: float
    fragmentation: float
    preemptions: int
    gpu_hours_lost: float
    fairness: float
    large_gangs: int
    large_queue_p95_s: float | None

    def data(self) -> dict[str, Any]:
        """As plain JSON."""
        return asdict(self)


def measure(policy: str, pools: Sequence[PoolResult]) -> Measures:
    """The figures of one policy over all its pools. Raises ValueError when no job ended."""
    outcomes = [outcome for pool in pools for outcome in pool.outcomes]
    if not outcomes:
        raise ValueError("no job ended, so there is nothing to measure")
    jct = sorted(outcome.jct_s for outcome in outcomes)
    queue = sorted(outcome.wait_s for outcome in outcomes)
    first = min(outcome.job.submit_s for outcome in outcomes)
    makespan = max(outcome.end_s for outcome in outcomes) - first
    gpus = sum(pool.gpus for pool in pools)
    allocated = sum(outcome.allocated_s * outcome.job.gpus for outcome in outcomes)
    large = sorted(outcome.wait_s for outcome in outcomes if outcome.job.gpus > LARGE_GPUS)
    return Measures(
        policy=policy,
        jobs=len(outcomes),
        jct_avg_s=sum(jct) / len(jct),
        jct_p50_s=percentile(jct, 0.5),
        jct_p99_s=percentile(jct, 0.99),
        jct_p999_s=percentile(jct, 0.999),
        queue_avg_s=sum(queue) / len(queue),
        queue_p50_s=percentile(queue, 0.5),
        queue_p99_s=percentile(queue, 0.99),
        queue_p999_s=percentile(queue, 0.999),
        makespan_s=makespan,
        utilization=allocated / (gpus * makespan) if gpus * makespan > 0 else 0.0,
        fragmentation=_fragmentation(pools),
        preemptions=sum(outcome.preemptions for outcome in outcomes),
        gpu_hours_lost=sum(o.lost_s * o.job.gpus for o in outcomes) / 3600.0,
        fairness=jain(_slowdowns(outcomes)),
        large_gangs=len(large),
        large_queue_p95_s=percentile(large, 0.95) if large else None,
    )


def percentile(ordered: Sequence[float], share: float) -> float:
    """The value at place floor(n x share) of a sorted list."""
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def jain(values: Sequence[float]) -> float:
    """Jain's index; 1 for no values."""
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else 1.0


def _slowdowns(outcomes: Sequence[Outcome]) -> list[float]:
    jct: dict[str, float] = {}
    run: dict[str, float] = {}
    for outcome in outcomes:
        team = outcome.job.team
        jct[team] = jct.get(team, 0.0) + outcome.jct_s
        run[team] = run.get(team, 0.0) + outcome.job.duration_s
    return [jct[team] / run[team] for team in jct if run[team] > 0]


def _fragmentation(pools: Sequence[PoolResult]) -> float:
    split = total = 0.0
    for pool in pools:
        for sample, following in zip(pool.samples, pool.samples[1:], strict=False):
            if sample.waiting:
                length = following.at_s - sample.at_s
                split += sample.split_gpus * length
                total += pool.gpus * length
    return split / total if total > 0 else 0.0
