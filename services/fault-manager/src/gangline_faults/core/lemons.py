"""Decisions about nodes that fail or straggle again and again: see policy/distrust.py."""

from __future__ import annotations

from collections.abc import Sequence

from gangline_faults.core.model import Blame
from gangline_faults.core.policy.distrust import is_lemon, may_distrust
from gangline_faults.core.policy.limits import FaultLimits
from gangline_faults.core.state import FaultPlan
from gangline_schemas.events.faults import NodeDistrusted


def distrust(plan: FaultPlan, node_ids: Sequence[str], blame: Blame, limits: FaultLimits) -> None:
    """Distrust the first of these nodes that their newest blame shows to be a lemon.

    A blame that came together with an earlier one of its node does not count (`with_blame`).
    """
    state, now = plan.state, blame.at
    for node_id in node_ids:
        node, known = state.nodes.get(node_id), state.blames.get(node_id, ())
        if node is None or blame not in known[-1:] or not is_lemon(known, now, limits):
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
        plan.add(node_id, distrusted)
        return
