"""Lemons: nodes that fail again and again, whatever runs on them.

1. A failure with action "elsewhere" blames its node; one that ends several gangs counts once.
2. A silent node or a broken GPU counts whichever job ran there. A failure that the job may have
   caused (a full disk, a bundle that cannot be fetched) counts when two jobs met it.
3. Few nodes are distrusted at a time: when many fail alike, the fault lies elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from gangline_faults.core.model import Blame, Health, Node
from gangline_faults.core.policy.limits import FaultLimits
from gangline_schemas.clocks import near
from gangline_schemas.events.faults import FailureClass

SAME_S = 60.0
"""Blames of a node that are closer than this are one failure."""
OF_THE_NODE = frozenset({FailureClass.NODE, FailureClass.DEVICE})
MOST_BLAMES = 32
STRAGGLED = FailureClass.UNKNOWN
"""A straggler may be its job's doing (uneven work): two jobs must have met it on the node."""


def with_blame(blames: Sequence[Blame], blame: Blame) -> tuple[Blame, ...]:
    """The newest failures of a node with one more, unless it is the same as the last."""
    if blames and near(blames[-1].at, blame.at, SAME_S):
        return tuple(blames)
    return (*blames, blame)[-MOST_BLAMES:]


def is_lemon(blames: Sequence[Blame], now: datetime, limits: FaultLimits) -> bool:
    """Whether a node with these failures failed too often."""
    recent = [
        blame for blame in blames if (now - blame.at).total_seconds() < limits.distrust_window_s
    ]
    if not limits.distrust_after or len(recent) < limits.distrust_after:
        return False
    jobs = {blame.job_id for blame in recent}
    return len(jobs) > 1 or all(blame.failure_class in OF_THE_NODE for blame in recent)


def may_distrust(
    distrusted: Mapping[str, datetime],
    nodes: Mapping[str, Node],
    now: datetime,
    limits: FaultLimits,
) -> bool:
    """Whether one more of these nodes may be distrusted now; those that left are none of them.

    Only one at a moment: nodes that fail together may have a cause in common.
    """
    lately = [
        at for at in distrusted.values() if (now - at).total_seconds() < limits.distrust_window_s
    ]
    there = sum(node.health is not Health.LEFT for node in nodes.values())
    return now not in lately and len(lately) + 1 <= limits.distrust_share * there
