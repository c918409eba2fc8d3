"""Follows quota's log: its state for teams, dry runs and limits."""

from __future__ import annotations

from dataclasses import replace

from gangline_bus.snapshot import SnapshotStore
from gangline_gateway.followed import Copies, Followed, only_state
from gangline_quota.core.decide import Quota
from gangline_quota.core.snapshot import codec
from gangline_quota.core.state import State
from gangline_schemas.catalog import Topic


def followed(store: SnapshotStore | None = None) -> Followed[State]:
    """The follower of gangline.quota. A copy costs O(teams + running gangs)."""
    return Followed(Quota(), codec(), _copy, store)


def state_of(copies: Copies[State]) -> State:
    """The state of its one partition. Raises NoStateError."""
    return only_state(copies, Topic.QUOTA)


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
