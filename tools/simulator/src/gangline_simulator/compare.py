"""Figures of `gangline replay --policy`: the results of a log, and differences between two.

- JCT: from the queue to the end, however the job ended, over the jobs that ended in every column.
- Queue: the part of a job's time in which it had no GPUs, over all jobs; of those that had not
  ended, up to the end of the log.
- Utilization: GPU-seconds allocated over those of the nodes that were there (not those that failed
  or were leaving), from the first submission on.
- Preemptions: gangs that were stopped for others, or moved or resized; those of failures are
  beside them.
- GPU-hours lost: what a job used before its last attempt, less its first start and the progress
  that the last one began with, and that one's start: stops, restarts, work that was done again.
All but utilization count the jobs that were queued since `since`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from gangline_schemas.events.scheduling import ReleaseReason
from gangline_simulator.history import History, JobHistory, progress_of
from gangline_simulator.ledger import PoolResult, Sample
from gangline_simulator.measure import percentile
from gangline_simulator.table import percent, seconds, side_by_side

SIZES: tuple[tuple[int, int | None], ...] = ((1, 1), (2, 8), (9, 32), (33, 128), (129, None))
TEAMS_SHOWN = 12
SHOWN = 10


@dataclass(frozen=True, slots=True)
class Wait:
    """The queue of some jobs, in seconds."""

    jobs: int
    avg_s: float
    p95_s: float


@dataclass(frozen=True, slots=True)
class Figures:
    """One column, times in seconds; see the module. JCTs are None when `jct_jobs` is 0."""

    policy: str
    jobs: int
    ended: int
    jct_jobs: int
    jct_avg_s: float | None
    jct_p50_s: float | None
    jct_p95_s: float | None
    queue_avg_s: float
    queue_p50_s: float
    queue_p95_s: float
    utilization: float
    preemptions: int
    failures: int
    gpu_hours_lost: float
    by_team: dict[str, Wait]
    by_size: dict[str, Wait]

    def data(self) -> dict[str, Any]:
        """As plain JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Difference:
    """A job that would have started at another time. None: it never got GPUs before the end."""

    job_id: str
    team: str
    gpus: int
    waited_s: float | None
    would_wait_s: float | None

    def data(self) -> dict[str, Any]:
        """As plain JSON."""
        return asdict(self)


def wait_s(job: JobHistory, end: datetime) -> float:
    """For how long a job had no GPUs."""
    lived_s = ((job.ended_at or end) - job.queued_at).total_seconds()
    return max(0.0, lived_s - job.allocated_s(end))


def first_wait_s(job: JobHistory) -> float | None:
    """From the queue to the first GPUs."""
    if not job.attempts:
        return None
    return (job.attempts[0].allocated_at - job.queued_at).total_seconds()


def lost_gpu_s(job: JobHistory, end: datetime) -> float:
    """GPU-seconds that came to nothing; see the module."""
    if len(job.attempts) <= 1:
        return 0.0
    *before, last = job.attempts
    allocated = sum(attempt.gpus * attempt.allocated_s(end) for attempt in before)
    first = job.attempts[0]
    started = (first.began(end) - first.allocated_at).total_seconds() * first.gpus
    restarted = (last.began(end) - last.allocated_at).total_seconds() * last.gpus
    kept = progress_of(job, end).starts[-1] * job.gpus
    return max(0.0, allocated - started - kept) + restarted


def figures(histories: Mapping[str, History], wanted: Sequence[str]) -> list[Figures]:
    """A column for each log, over the wanted jobs. Raises ValueError when there are none."""
    if not wanted:
        raise ValueError("no job was submitted")
    ended = [
        job_id
        for job_id in wanted
        if all(history.jobs[job_id].ended_at is not None for history in histories.values())
    ]
    return [_figures(name, history, wanted, ended) for name, history in histories.items()]


def _figures(name: str, history: History, wanted: Sequence[str], ended: Sequence[str]) -> Figures:
    end = history.end
    jobs = [history.jobs[job_id] for job_id in wanted]
    jct = sorted(
        (job.ended_at - job.queued_at).total_seconds()
        for job in (history.jobs[job_id] for job_id in ended)
        if job.ended_at is not None
    )
    queue = sorted(wait_s(job, end) for job in jobs)
    attempts = [attempt for job in jobs for attempt in job.attempts]
    failed = [item for item in attempts if item.reason is ReleaseReason.RESTARTING]
    return Figures(
        policy=name,
        jobs=len(jobs),
        ended=sum(job.ended_at is not None for job in jobs),
        jct_jobs=len(jct),
        jct_avg_s=sum(jct) / len(jct) if jct else None,
        jct_p50_s=percentile(jct, 0.5) if jct else None,
        jct_p95_s=percentile(jct, 0.95) if jct else None,
        queue_avg_s=sum(queue) / len(queue),
        queue_p50_s=percentile(queue, 0.5),
        queue_p95_s=percentile(queue, 0.95),
        utilization=_utilization(history),
        preemptions=sum(item.reason is ReleaseReason.PREEMPTED for item in attempts),
        failures=sum(item.stop is None for item in failed),
        gpu_hours_lost=sum(lost_gpu_s(job, end) for job in jobs) / 3600,
        by_team=_waits(jobs, end, lambda job: job.spec.team),
        by_size=_waits(jobs, end, _size),
    )


def _waits(
    jobs: Iterable[JobHistory], end: datetime, kind: Callable[[JobHistory], str]
) -> dict[str, Wait]:
    found: dict[str, list[float]] = {}
    for job in jobs:
        found.setdefault(kind(job), []).append(wait_s(job, end))
    return {
        name: Wait(len(waits), sum(waits) / len(waits), percentile(sorted(waits), 0.95))
        for name, waits in sorted(found.items())
    }


def _size(job: JobHistory) -> str:
    low, high = next(size for size in SIZES if size[1] is None or job.gpus <= size[1])
    return f"{low}+" if high is None else str(low) if low == high else f"{low}-{high}"


def _first(history: History) -> datetime:
    return min((job.queued_at for job in history.jobs.values()), default=history.start)


def _utilization(history: History) -> float:
    first, end = _first(history), history.end
    offered = 0.0
    following = [at for at, _ in history.capacity[1:]] + [end]
    for (at, gpus), until in zip(history.capacity, following, strict=True):
        offered += gpus * max(0.0, (until - max(at, first)).total_seconds())
    allocated = sum(
        attempt.gpus * attempt.allocated_s(end)
        for job in history.jobs.values()
        for attempt in job.attempts
    )
    return allocated / offered if offered > 0 else 0.0


def differences(real: History, other: History, wanted: Sequence[str]) -> list[Difference]:
    """Jobs of which the first start differs, the most first; a microsecond does not count."""
    found: list[tuple[float, Difference]] = []
    for job_id in wanted:
        job, would = real.jobs[job_id], other.jobs[job_id]
        waited_s, would_wait_s = first_wait_s(job), first_wait_s(would)
        longest_s = (real.end - job.queued_at).total_seconds()
        by_s = abs(
            (longest_s if waited_s is None else waited_s)
            - (longest_s if would_wait_s is None else would_wait_s)
        )
        if by_s > 1e-3 or (waited_s is None) != (would_wait_s is None):
            entry = Difference(job_id, job.spec.team, job.gpus, waited_s, would_wait_s)
            found.append((by_s, entry))
    found.sort(key=lambda item: (-item[0], item[1].job_id))
    return [entry for _, entry in found]


def pool_result(history: History) -> PoolResult:
    """GPUs allocated and jobs that wait over time, for the picture."""
    changes: dict[datetime, list[int]] = {}

    def change(at: datetime | None, allocated: int, waiting: int) -> None:
        entry = changes.setdefault(at or history.end, [0, 0])
        entry[0] += allocated
        entry[1] += waiting

    for job in history.jobs.values():
        change(job.queued_at, 0, 1)
        for attempt in job.attempts:
            change(attempt.allocated_at, attempt.gpus, -1)
            change(attempt.released_at, -attempt.gpus, 1)
        change(job.ended_at, 0, -1)
    first, allocated, waiting = _first(history), 0, 0
    samples: list[Sample] = []
    for at, (more, longer) in sorted(changes.items()):
        allocated, waiting = allocated + more, waiting + longer
        samples.append(Sample((at - first).total_seconds(), allocated, waiting, 0))
    samples.append(Sample((history.end - first).total_seconds(), 0, 0, 0))
    return PoolResult(max((gpus for _, gpus in history.capacity), default=0), (), tuple(samples))


def figures_table(columns: Sequence[Figures]) -> str:
    """The figures side by side in at most 80 columns; the teams with the most jobs alone."""
    first = columns[0]
    by_jobs = sorted(first.by_team, key=lambda name: (-first.by_team[name].jobs, name))
    teams = sorted(by_jobs[:TEAMS_SHOWN])
    sizes = sorted(first.by_size, key=lambda name: int(name.partition("-")[0].rstrip("+")))
    rows: list[tuple[str, Callable[[Figures], str]]] = [
        ("jobs", lambda item: f"{item.jobs:,}"),
        ("ended", lambda item: f"{item.ended:,}"),
        ("JCT average, s", lambda item: seconds(item.jct_avg_s)),
        ("JCT p50, s", lambda item: seconds(item.jct_p50_s)),
        ("JCT p95, s", lambda item: seconds(item.jct_p95_s)),
        ("queue average, s", lambda item: seconds(item.queue_avg_s)),
        ("queue p50, s", lambda item: seconds(item.queue_p50_s)),
        ("queue p95, s", lambda item: seconds(item.queue_p95_s)),
        ("utilization", lambda item: percent(item.utilization)),
        ("preemptions", lambda item: f"{item.preemptions:,}"),
        ("restarts by failures", lambda item: f"{item.failures:,}"),
        ("GPU-hours lost", lambda item: f"{item.gpu_hours_lost:,.1f}"),
    ]
    lines = [(label, [cell(item) for item in columns]) for label, cell in rows]
    lines.append(("queue average of, s", ["" for _ in columns]))
    lines.extend(
        (f"  {name}"[:22], [seconds(item.by_team[name].avg_s) for item in columns])
        for name in teams
    )
    for name in sizes:
        label = f"  {name} GPU{'' if name == '1' else 's'}"
        lines.append((label, [seconds(item.by_size[name].avg_s) for item in columns]))
    return side_by_side(
        [label for label, _ in lines],
        [
            [item.policy.upper(), *(cells[index] for _, cells in lines)]
            for index, item in enumerate(columns)
        ],
    )
