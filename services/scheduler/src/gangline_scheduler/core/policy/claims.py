"""Claims: GPUs that a job within its team's guarantee gets soon, and that no job borrows before.

Such a job may not fit yet: a gang that would be stopped for it is in its first `min_runtime`,
another one still stops, or a third one is about to end. The job's claim then has a reservation
(reservation.py) from the moment on at which these gangs could be gone. Until then only jobs that
end in time use its GPUs. A claim holds back jobs without one, never another claim. Claims of one
team have reservations only for as many GPUs as its guarantee still has.

The wait is at most `min_runtime`, or as long as a stop under way takes. A claim that would not fit
after that holds no job back: it would need the end of gangs that must not be stopped. Nor does a
claim for which no gangs are stopped once they may be (cycle.py).

Cost: O(running gangs) once, and for each team that is owed GPUs those that may be stopped.
"""

from __future__ import annotations

from datetime import datetime
from functools import cached_property

from gangline_scheduler.core.model import Job
from gangline_scheduler.core.policy.config import Policy
from gangline_scheduler.core.policy.estimate import Estimates
from gangline_scheduler.core.policy.reservation import End, Ends
from gangline_scheduler.core.policy.victims import Guarantees, Victim, leaving, stoppable_from
from gangline_scheduler.core.state import State
from gangline_scheduler.core.usage import line_of


class Claims:
    """When gangs could be gone for the teams that are owed GPUs, in one state."""

    def __init__(self, state: State, now: datetime, policy: Policy, estimates: Estimates) -> None:
        self._state, self._now, self._policy, self._estimates = state, now, policy, estimates
        self._known: dict[tuple[str, str], tuple[Ends, int]] = {}

    def ends(self, job: Job, owed: str) -> tuple[Ends, int]:
        """The gangs that could be gone soon for a job that the guarantee of the team `owed` holds.

        And their GPUs. Those that could be gone at one time are in the order of their places, not
        of their names.
        """
        key = (job.team, owed)
        if key not in self._known:
            found = self._ends(job, owed)
            self._known[key] = found, sum(gang.allocated_gpus for _, _, gang in found)
        return self._known[key]

    def _ends(self, job: Job, owed: str) -> Ends:
        state, (found, may_stop) = self._state, self._soon
        guarantees = Guarantees(state, self._leaving, line_of(state.teams, job.team))
        taken: dict[str, int] = {}
        stopped: list[End] = []
        for at, place, other in may_stop:
            victim = Victim(other, other.allocated_gpus, 0.0)
            outside = owed not in line_of(state.teams, other.team)
            if outside and guarantees.allow(victim, taken):
                guarantees.take(other, victim.gpus, taken)
                stopped.append((at, place, other))
        return sorted([*found, *stopped], key=lambda entry: entry[:2])

    @cached_property
    def _leaving(self) -> dict[str, int]:
        return leaving(self._state)

    @cached_property
    def _soon(self) -> tuple[Ends, Ends]:
        """Gangs that will be gone soon by themselves, and those that may be stopped by then."""
        state, now = self._state, self._now
        latest = now + self._policy.preemption.min_runtime
        promised = {name for reserved in state.reserved.values() for name in reserved.victims}
        gone: list[End] = []
        may_stop: list[End] = []
        for job_id in state.live:
            other = state.jobs[job_id]
            gang = other.gang
            if gang is None or job_id in state.reserved:
                continue
            place = f"{gang.nodes[0].node_id}/{gang.nodes[0].gpus[0]}"
            if gang.stop is not None:
                if gang.leaving and job_id not in promised:
                    gone.append((max(now, gang.stop.deadline), place, other))
                continue
            end = self._estimates.end(other)
            if end <= latest:
                gone.append((end, place, other))
            else:
                at = stoppable_from(other, now, self._policy.preemption)
                if at is not None:
                    may_stop.append((at, place, other))
        return gone, sorted(may_stop, key=lambda entry: entry[:2])
