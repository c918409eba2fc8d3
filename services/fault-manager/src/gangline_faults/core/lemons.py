"""Decisions about nodes that fail or straggle again and again: see policy/distrust.py."""

from __future__ import annotations

from collections.abc import Sequence

from gangline_bus.decision import Decision
from gangline_faults.core.model import Blame
from gangline_faults.core.policy.distrust import is_lemon, may_distrust, with_blame
from gangline_faults.core.policy.limits import FaultLimits
from gangline_faults.core.state import FaultState
from gangline_schemas.events.faults import NodeDistrusted


def distrust(
    state: FaultState, node_ids: Sequence[str], blame: Blame, limits: FaultLimits
) -> list[Decision]:
    """Those of the blamed nodes that one more blame shows to be lemons; at most one at a time."""
    now = blame.at
    for node_id in node_ids:
        node, blames = state.nodes.get(node_id), state.blames.get(node_id, ())
        known = with_blame(blames, blame)
        if node is None or known == blames or not is_lemon(known, now, limits):
            continue
        if not may_distrust(state.distrusted, state.nodes, now, limits):
            continue
        distrusted = NodeDistrusted(
            node_id=node_id,
            incarnation=node.incarnation,
            failures=len(known),
            jobs=len({item.job_id for item in known}),
            since=known[0].at,
            distrusted_at=now,
        )
        return [Decision(node_id, distrusted)]
    return []
