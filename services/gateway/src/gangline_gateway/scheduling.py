"""Follows the scheduler's log: its state, with the policy that the log names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gangline_bus.snapshot import SnapshotStore
from gangline_gateway.followed import Copies, Followed, NoStateError
from gangline_scheduler.core.decide import Scheduler
from gangline_scheduler.core.policy.config import Policy
from gangline_scheduler.core.policy.configured import policy_in
from gangline_scheduler.core.snapshot import codec
from gangline_scheduler.core.state import State, fork


@dataclass(frozen=True, slots=True)
class Shard:
    """One shard's state, and the policy that its log names."""

    state: State
    policy: Policy


def followed(store: SnapshotStore | None = None) -> Followed[State]:
    """The follower of gangline.scheduling. A copy costs O(jobs + nodes)."""
    scheduler = Scheduler()
    return Followed(scheduler, codec(scheduler.initial), _copy, store)


def shards(copies: Copies[State]) -> Sequence[Shard]:
    """All shards. Raises NoStateError."""
    try:
        return [Shard(state, policy_in(state)) for state in copies.states()]
    except ValueError as error:
        raise NoStateError(f"the scheduler is newer: {error}; upgrade the gateway") from None


def starts_of_ended(copies: Copies[State], job_id: str) -> list[int]:
    """The steps from which a new run of an ended one can start, rising; none: it is not known."""
    try:
        found = [each.state.ended.get(job_id) for each in shards(copies)]
    except NoStateError:
        return []
    points = (point for run in found if run is not None for point in run.checkpoints)
    return sorted({point.step for point in points})


def _copy(state: State) -> State:
    copy = fork(state)
    copy.ended = state.ended  # large, and readers look up only single runs
    return copy
