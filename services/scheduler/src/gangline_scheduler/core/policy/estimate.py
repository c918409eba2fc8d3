"""How long a job runs, as far as can be known before it has ended.

The spec's time (`expected_runtime_hours`, else `max_runtime_hours`) is multiplied by the ratio of
real to stated times of the team's past jobs (their median, within a factor of `MOST_RATIO`). A job
without a time is expected to take the team's median. The estimate is never above the job's limit.
An overdue job is expected to end after another tenth of the time that it has run, so a reservation
that waits for it moves seldom.
Cost: O(remembered runs of the team), kept for the pass in `Estimates`.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from statistics import median

from gangline_scheduler.core.model import Job
from gangline_scheduler.core.state import State

FEWEST_RUNS = 3
OVERDUE_PART = 0.1
SHORTEST_S = 60.0
LONGEST_S = 10 * 365 * 86_400.0
"""Nothing is expected to run longer: ten years."""
MOST_RATIO = 100.0


class Estimates:
    """Expected runtimes in one state. `default_s` is for who says nothing and has no past."""

    def __init__(self, state: State, now: datetime, default_s: float) -> None:
        self._state, self._now, self._default_s = state, now, default_s
        self._teams: dict[str, tuple[float, float]] = {}

    def runtime_s(self, job: Job) -> float:
        """Seconds for which the job will have had GPUs when it ends."""
        ratio, typical_s = self._past(job.team)
        expected_h, limit = job.spec.expected_runtime_hours, job.spec.max_runtime_hours
        if expected_h is not None:
            expected_s = expected_h * 3600 * ratio
        elif limit is not None:
            expected_s = limit * 3600
        else:
            expected_s = typical_s
        return expected_s if limit is None else min(expected_s, limit * 3600)

    def left_s(self, job: Job) -> float:
        """Seconds that it still needs GPUs."""
        ran_s = job.ran_by(self._now)
        left_s = self.runtime_s(job) - ran_s
        if left_s <= 0:
            left_s = max(SHORTEST_S, OVERDUE_PART * ran_s)
        return min(left_s, LONGEST_S)

    def end(self, job: Job) -> datetime:
        """When it ends: a running gang, or one that would start now. A stop ends it sooner."""
        stop = job.gang.stop if job.gang is not None and job.gang.leaving else None
        if stop is not None:
            return max(self._now, stop.deadline)
        return self._now + timedelta(seconds=self.left_s(job))

    def _past(self, team: str) -> tuple[float, float]:
        """(taken over said, typical seconds) of the team's last jobs."""
        if team not in self._teams:
            runs = self._state.runtimes.get(team, ())
            ratios = [run.ran_s / run.expected_s for run in runs if run.expected_s]
            ratio = median(ratios) if len(ratios) >= FEWEST_RUNS else 1.0
            ratio = min(max(ratio, 1 / MOST_RATIO), MOST_RATIO)
            enough = len(runs) >= FEWEST_RUNS
            typical_s = median(run.ran_s for run in runs) if enough else self._default_s
            self._teams[team] = (ratio, typical_s)
        return self._teams[team]
