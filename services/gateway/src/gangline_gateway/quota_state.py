"""Follows quota's log: its state for teams, dry runs and limits."""

from __future__ import annotations

from dataclasses import replace

from gangline_bus.snapshot import SnapshotStore
from gangline_gateway.followed import Copies, Followed, NoStateError
from gangline_quota.core.decide import Quota
from gangline_quota.core.snapshot import codec
from gangline_quota.core.state import State


def followed(store: SnapshotStore | None = None) -> Followed[State]:
    """The follower of gangline.quota. A copy costs O(teams + running gangs)."""
    return Followed(Quota(), codec(), _copy, store)


def state_of(copies: Copies[State]) -> State:
    """The state of its one partition. Raises NoStateError."""
    states = copies.states()
    if len(states) != 1:
        raise NoStateError(f"gangline.quota has {len(states)} partitions and must have one")
    return states[0]


def _copy(state: State) -> State:
    """A copy. It shares the large maps of jobs, where readers look up only single ids."""
    return replace(
        state,
        teams=dict(state.teams),
        budgets=dict(state.budgets),
        allocated=dict(state.allocated),
        spent_us=dict(state.spent_us),
        totals_us=dict(state.totals_us),
        unfinished=dict(state.unfinished),
        meters=dict(state.meters),
        approvals=dict(state.approvals),
    )
