"""Facts of reports: the jobs, gangs, nodes and teams of one period. Pure values.

A gang is one attempt of a job. All times are before the period's end; None: not before its end.
Shares are 0 to 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Protocol, TypeVar

HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class Period:
    """From `since` (included) to `until` (excluded)."""

    since: datetime
    until: datetime

    @property
    def length_s(self) -> float:
        """The length in seconds."""
        return (self.until - self.since).total_seconds()

    def holds(self, moment: datetime | None) -> bool:
        """Whether it happened in the period."""
        return moment is not None and self.since <= moment < self.until

    def overlap_s(self, start: datetime, end: datetime | None) -> float:
        """Seconds of `start .. end` (None: not ended) within the period."""
        last = self.until if end is None else min(end, self.until)
        return max(0.0, (last - max(start, self.since)).total_seconds())

    def parts(self, count: int) -> list[Period]:
        """So many equal parts, in order."""
        length = self.until - self.since
        ends = [self.since + length * index / count for index in range(1, count)]
        return [
            Period(start, end)
            for start, end in zip([self.since, *ends], [*ends, self.until], strict=True)
            if count
        ]

    def earlier(self, by: timedelta) -> Period:
        """The period of the same length, earlier by `by`."""
        return Period(self.since - by, self.until - by)


@dataclass(frozen=True, slots=True)
class Gang:
    """One attempt: it had `gpus`, or `cpus` without GPUs, from `allocated_at` to `released_at`.

    `failed_at`: when it was declared failed; `saved_at`: when its newest checkpoint was committed.
    """

    attempt: int
    gpus: int
    allocated_at: datetime
    running_at: datetime | None = None
    released_at: datetime | None = None
    preempted_at: datetime | None = None
    failed_at: datetime | None = None
    saved_at: datetime | None = None
    cpus: float = 0.0


@dataclass(frozen=True, slots=True)
class Job:
    """A job that existed in the period, with all its gangs so far in order.

    `gpus` is what it asks for; `state` counts once it has ended.
    """

    job_id: str
    team: str
    name: str
    gpus: int
    priority: int
    state: str
    submitted_at: datetime
    ended_at: datetime | None = None
    gangs: tuple[Gang, ...] = ()
    gpu_hour: float | None = None
    """The price of an hour of one of its newest attempt's GPUs, where it is known."""


@dataclass(frozen=True, slots=True)
class NodeChange:
    """From `time` on, this many GPUs of the node are up; 0: the node is away."""

    node_id: str
    time: datetime
    gpus: int


@dataclass(frozen=True, slots=True)
class Quota:
    """A team's limits at the end of the period."""

    team: str
    gpu_limit: int
    gpu_guarantee: int = 0
    borrow_limit: int = 0
    parent: str | None = None


@dataclass(frozen=True, slots=True)
class RunMfu:
    """The metric `mfu` of one run over its steps in the period."""

    job_id: str
    team: str
    mean: float
    steps: int


@dataclass(frozen=True, slots=True)
class GpuUse:
    """The reported utilization of a team's GPUs, as a mean over samples."""

    team: str
    share: float
    samples: int


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything about one period. `busy_share` is the mean over all GPUs that reported."""

    period: Period
    jobs: tuple[Job, ...] = ()
    nodes: tuple[NodeChange, ...] = ()
    quotas: tuple[Quota, ...] = ()
    mfu: tuple[RunMfu, ...] = ()
    gpu_use: tuple[GpuUse, ...] = ()
    busy_share: float | None = None

    def of(self, teams: frozenset[str] | None) -> Facts:
        """Only jobs and quotas of these teams (None: of all); nodes belong to no team."""
        if teams is None:
            return self
        return replace(
            self,
            jobs=tuple(job for job in self.jobs if job.team in teams),
            quotas=tuple(quota for quota in self.quotas if quota.team in teams),
            mfu=tuple(run for run in self.mfu if run.team in teams),
            gpu_use=tuple(use for use in self.gpu_use if use.team in teams),
        )

    def by_team(self) -> dict[str, Facts]:
        """Each team with a quota or a job, by name, with the rows of the teams below it.

        Cost: O(rows x depth of the tree).
        """
        above = _Above({quota.team: quota.parent for quota in self.quotas})
        jobs, mfu, use = above.groups(self.jobs), above.groups(self.mfu), above.groups(self.gpu_use)
        quotas = {quota.team: quota for quota in self.quotas}
        return {
            team: replace(
                self,
                jobs=tuple(jobs.get(team, ())),
                quotas=(quotas[team],) if team in quotas else (),
                mfu=tuple(mfu.get(team, ())),
                gpu_use=tuple(use.get(team, ())),
            )
            for team in sorted(jobs.keys() | quotas.keys())
        }


class _OfTeam(Protocol):
    @property
    def team(self) -> str: ...


RowT = TypeVar("RowT", bound=_OfTeam)


class _Above:
    """The known parents of teams."""

    def __init__(self, parents: Mapping[str, str | None]) -> None:
        self._parents = parents

    def groups(self, rows: Iterable[RowT]) -> dict[str, list[RowT]]:
        """Rows by their team and by every team above it."""
        found: dict[str, list[RowT]] = {}
        for row in rows:
            for team in self._line(row.team):
                found.setdefault(team, []).append(row)
        return found

    def _line(self, team: str) -> list[str]:
        line = [team]
        while (parent := self._parents.get(line[-1])) in self._parents and parent not in line:
            line.append(str(parent))
        return line


def waits(job: Job) -> Sequence[tuple[datetime, datetime | None]]:
    """When the job waited for GPUs: before its first gang, between gangs, and at the end."""
    spans: list[tuple[datetime, datetime | None]] = []
    free_since: datetime | None = job.submitted_at
    for gang in job.gangs:
        if free_since is not None:
            spans.append((free_since, gang.allocated_at))
        free_since = gang.released_at
    if free_since is not None:
        spans.append((free_since, job.ended_at))
    return spans
