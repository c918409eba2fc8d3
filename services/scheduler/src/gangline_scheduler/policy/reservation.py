"""Reservations: when and where a gang that has waited too long will start.

Running gangs are taken away in the order of their expected ends until the waiting gang fits: that
is its start and its place. Until then a job may use those GPUs only if it is expected to end before
the start (backfill); a longer one gets what the reserved gang leaves over. So a reserved gang is
not delayed but by wrong estimates, and no GPU that can be used idles for it.

`easy` reserves for the first gang that waited too long, `conservative` for the first `DEPTH`.
Cost: O(running gangs + placements tried from the moment on at which enough GPUs are free).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from gangline_scheduler.model import Demand, Job
from gangline_scheduler.policy.placement import Placement
from gangline_scheduler.policy.statement import Snapshot, Statement

Mode = Literal["off", "easy", "conservative"]
DEPTH: dict[Mode, int] = {"off": 0, "easy": 1, "conservative": 10}

Ends = list[tuple[datetime, str, Job]]
"""Running gangs by their expected ends: (end, job id, job)."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """What is reserved for a job from `start` on, and how many GPUs of which nodes are kept."""

    job_id: str
    start: datetime
    placement: Placement
    kept: tuple[tuple[str, int], ...]

    @property
    def nodes(self) -> frozenset[str]:
        """The nodes that it will run on."""
        return frozenset(part.node_id for part in self.placement.parts)


def reserve(
    job_id: str, demand: Demand, snapshot: Snapshot, ends: Ends, now: datetime
) -> Reservation | None:
    """The earliest start; None when the gang would not fit even after the last end."""
    later = snapshot.copy()
    trial = Statement(later)
    found, start = trial.place(demand), now
    for end, _, running in ends:
        if found is not None:
            break
        trial.evict(running)
        start = max(now, end)
        if later.free_gpus >= (demand.fewest or demand.gpus):
            found = trial.place(demand)
    if found is None:
        return None
    return Reservation(job_id, start, found, _kept(found, snapshot, later))


def _kept(found: Placement, snapshot: Snapshot, later: Snapshot) -> tuple[tuple[str, int], ...]:
    """Free GPUs that a job that runs past the start may not take: all but what will be left."""
    kept: list[tuple[str, int]] = []
    for part in found.parts:
        now, then = snapshot.free.get(part.node_id), later.free.get(part.node_id)
        free_now = now.size if now is not None else 0
        left = then.size if then is not None else 0
        if free_now > left:
            kept.append((part.node_id, free_now - left))
    return tuple(kept)
