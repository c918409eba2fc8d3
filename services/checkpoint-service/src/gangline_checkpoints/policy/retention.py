"""Which committed checkpoints may go."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from gangline_checkpoints.model import Kept, StepId
from gangline_schemas.job import Retention


def surplus(kept: Sequence[Kept], keep: Retention, held: Collection[StepId]) -> list[StepId]:
    """What may be deleted of `kept` (oldest first): never the newest healthy one, nor a held one.

    Kept are the `keep.latest` newest healthy ones and, if asked for, the best by a metric; of
    equally good ones the newest. An unhealthy one is of no use once a newer healthy one exists.
    """
    healthy = [item for item in kept if item.healthy]
    if not healthy:
        return []
    wanted = {item.id for item in healthy[-max(1, keep.latest) :]} | set(held)
    best = _best(healthy, keep)
    if best is not None:
        wanted.add(best)
    newest = healthy[-1].id
    return [item.id for item in kept if item.id not in wanted and item.id < newest]


def _best(healthy: Sequence[Kept], keep: Retention) -> StepId | None:
    if keep.best is None:
        return None
    name, sign = keep.best.metric, 1 if keep.best.mode == "max" else -1
    measured = [item for item in healthy if name in item.metrics]
    if not measured:
        return None
    return max(measured, key=lambda item: (sign * item.metrics[name], item.id)).id
