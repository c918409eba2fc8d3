"""How many GPUs a team may hold now: its limit, and more while nobody else is owed any."""

from __future__ import annotations

from gangline_scheduler.model import Job
from gangline_scheduler.state import State

STUCK = frozenset({"shape", "gpu_type"})


class Ceilings:
    """What each team may hold in one pass.

    A team may always hold its limit. It may hold `borrow_limit` more as long as no *other* team
    has a pending job that would fit into what that team is guaranteed: guarantees come first.
    Jobs that no admitted nodes can hold do not stand in the way. Cost: O(pending), once, and
    only if a team that may borrow is at its limit.
    """

    def __init__(self, state: State) -> None:
        self._at_start = state
        self._smallest: dict[str, int] | None = None

    def allows(self, state: State, job: Job) -> bool:
        """Whether the team may take the job's GPUs on top of what it holds in `state`."""
        wanted = state.used.get(job.team, 0) + job.gpus
        known = state.teams.get(job.team)
        if known is not None and wanted <= known.config.gpu_limit:
            return True
        return wanted <= self.ceiling(state, job.team)

    def ceiling(self, state: State, team: str) -> int:
        """GPUs that the team may hold now; 0 for a team that is not known."""
        known = state.teams.get(team)
        if known is None:
            return 0
        if known.config.borrow_limit and self.creditor(state, team) is None:
            return known.config.ceiling
        return known.config.gpu_limit

    def creditor(self, state: State, team: str) -> str | None:
        """Another team with a pending job that fits into its guarantee; None when there is none."""
        smallest = self._smallest_jobs()
        for other in sorted(smallest):
            known = state.teams.get(other)
            if other == team or known is None:
                continue
            if state.used.get(other, 0) + smallest[other] <= known.config.gpu_guarantee:
                return other
        return None

    def _smallest_jobs(self) -> dict[str, int]:
        """GPUs of the smallest pending job of each team that some nodes could hold."""
        if self._smallest is None:
            self._smallest = {}
            for job_id in self._at_start.pending:
                job = self._at_start.jobs[job_id]
                if job.waiting is None or job.waiting.code not in STUCK:
                    known = self._smallest.get(job.team, job.gpus)
                    self._smallest[job.team] = min(known, job.gpus)
        return self._smallest
