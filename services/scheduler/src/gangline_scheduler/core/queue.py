"""The pending jobs, kept in order while they come and go.

Jobs of the same team, priority and shape differ for a policy only by how long they wait. They form
a group, which is a sorted list: if the first of a group does not fit, a pass drops the group as a
whole. Cost: O(log n) to find a place, one copy of a group's list for
each decision that changes it.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Hashable, Iterator
from typing import Any, NamedTuple

from gangline_scheduler.core.model import Avoid, Job, wanted_labels


class Slot(NamedTuple):
    """A job's group, and its place within it (unique: it ends with the job's id).

    `work`: GPU-seconds that it is taken to need, for an order that counts them.
    """

    group: Hashable
    place: tuple[Any, ...]
    work: int = 0


SlotOf = Callable[[Job], Slot]
_PLACED_BY = ("priority", "waiting_since", "restarting", "avoid", "ran_s", "attempt", "resize_to")
"""Values that may change while a job waits and that a slot may depend on."""


class CpuGroup(NamedTuple):
    """Pending jobs without GPUs that fit or fail together and of which the oldest goes first."""

    restarting: bool
    priority: int
    team: str
    cpus: float
    memory_gb: float
    nodes: int
    labels: tuple[tuple[str, str], ...]
    avoid: tuple[Avoid, ...]


def cpu_slot(job: Job) -> Slot:
    """The place of a job without GPUs (cpu_jobs.py)."""
    need = job.spec.resources
    group = CpuGroup(
        job.restarting,
        job.priority,
        job.team,
        need.cpus or 0.0,
        need.memory_gb or 0.0,
        need.ranks,
        wanted_labels(job.spec),
        job.avoid,
    )
    return Slot(group, (job.waiting_since, job.submitted_at, job.job_id))


class PendingIndex:
    """Groups of pending jobs, each in order. `work`: GPU-seconds that they need, where counted."""

    def __init__(self, slot_of: SlotOf) -> None:
        self.slot_of = slot_of
        self._groups: dict[Hashable, list[tuple[Any, ...]]] = {}
        self._own: set[Hashable] = set()
        self.work = 0

    def copy(self) -> PendingIndex:
        """One that changes by itself."""
        other = PendingIndex(self.slot_of)
        other._groups = self.groups()
        other.work = self.work
        return other

    def groups(self) -> dict[Hashable, list[tuple[Any, ...]]]:
        """The places of each group in order, as they are now: later changes leave them alone."""
        self._own = set()
        return dict(self._groups)

    def ids(self) -> Iterator[str]:
        """Every pending job."""
        return (place[-1] for places in self._groups.values() for place in places)

    def add(self, job: Job) -> None:
        """A job that begins to wait."""
        group, place, work = self.slot_of(job)
        insort(self._writable(group), place)
        self.work += work

    def remove(self, job: Job) -> None:
        """A job as it was when it was added. Raises KeyError when it is not there."""
        group, place, work = self.slot_of(job)
        places = self._writable(group)
        at = bisect_left(places, place)
        if at == len(places) or places[at] != place:
            raise KeyError(job.job_id)
        del places[at]
        self.work -= work
        if not places:
            del self._groups[group]
            self._own.discard(group)

    def replace(self, before: Job, after: Job) -> None:
        """The same job with other values."""
        if all(getattr(before, name) == getattr(after, name) for name in _PLACED_BY):
            return
        if self.slot_of(before) != self.slot_of(after):
            self.remove(before)
            self.add(after)

    def _writable(self, group: Hashable) -> list[tuple[Any, ...]]:
        if group not in self._own:
            self._own.add(group)
            self._groups[group] = list(self._groups.get(group, ()))
        return self._groups[group]
