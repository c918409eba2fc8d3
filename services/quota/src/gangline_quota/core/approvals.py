"""Approvals of uses of data: each is given once and withdrawn once."""

from __future__ import annotations

from gangline_bus.decision import Decision
from gangline_quota.core.state import RequestRef, State
from gangline_schemas.data_use import DataUse
from gangline_schemas.events.admin import SnapshotApprovalRequested
from gangline_schemas.events.quota import SnapshotApproved, SnapshotWithdrawn


def decided(state: State, request: SnapshotApprovalRequested, ref: RequestRef) -> list[Decision]:
    """At most one decision; none when it stands so already."""
    use = DataUse(request.snapshot, request.project, request.purpose)
    if ref.key in state.requests or (use in state.approvals) == request.approve:
        return []
    kind = SnapshotApproved if request.approve else SnapshotWithdrawn
    event = kind(**use._asdict(), user=request.user, **ref._asdict())
    return [Decision(request.snapshot, event)]
