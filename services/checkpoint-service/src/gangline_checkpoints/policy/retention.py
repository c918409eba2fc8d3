"""Which committed checkpoints may go."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from gangline_checkpoints.model import Kept, StepId
from gangline_schemas.job import Retention
from gangline_schemas.retention import reasons


def surplus(kept: Sequence[Kept], keep: Retention, held: Collection[StepId]) -> list[StepId]:
    """What may be deleted of `kept` (oldest first): never the newest healthy one, nor a held one.

    Kept is what `reasons` names. An unhealthy one is of no use once a newer healthy one exists.
    """
    healthy = [item for item in kept if item.healthy]
    if not healthy:
        return []
    wanted = {*reasons(healthy, keep), *held}
    newest = healthy[-1].id
    return [item.id for item in kept if item.id not in wanted and item.id < newest]
