"""Which committed checkpoints may go."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from gangline_checkpoints.core.model import Kept, StepId
from gangline_schemas.checkpoint_policy import Retention
from gangline_schemas.retention import reasons


def surplus(
    kept: Sequence[Kept], keep: Retention, in_use: Collection[StepId], *, known: StepId | None
) -> list[StepId]:
    """Those of `kept` (oldest first) to delete: never the newest healthy one, nor one `in_use`.

    Retained are those that `reasons` names, and each healthy one that is not older than `known`.
    That is the newest one that the scheduler is known to know (None: all). However many commits it
    is behind, it may start an attempt from them. An unhealthy one is useless once a newer healthy
    one exists.
    """
    healthy = [item for item in kept if item.healthy]
    if not healthy:
        return []
    wanted = {*reasons(healthy, keep), *in_use}
    newest = healthy[-1].id
    wanted |= {item.id for item in healthy if known is None or item.id >= known}
    return [item.id for item in kept if item.id not in wanted and item.id < newest]
