"""Which committed checkpoints may go."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from gangline_checkpoints.model import Kept, StepId
from gangline_schemas.job import Retention
from gangline_schemas.retention import reasons


def surplus(
    kept: Sequence[Kept], keep: Retention, held: Collection[StepId], *, known: StepId | None
) -> list[StepId]:
    """What may be deleted of `kept` (oldest first): never the newest healthy one, nor a held one.

    Kept is what `reasons` names, and of the rest each healthy one that is not older than `known`,
    the newest that the scheduler is known to know (None: all): however many commits it is behind,
    it may start an attempt from them. An unhealthy one is of no use once a newer healthy one
    exists.
    """
    healthy = [item for item in kept if item.healthy]
    if not healthy:
        return []
    wanted = {*reasons(healthy, keep), *held}
    newest = healthy[-1].id
    wanted |= {item.id for item in healthy if known is None or item.id >= known}
    return [item.id for item in kept if item.id not in wanted and item.id < newest]
