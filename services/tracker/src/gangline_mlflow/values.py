"""Values of metrics as MLflow's SQL has them: a NaN is 0 with a flag, an infinity the largest."""

from __future__ import annotations

import math

from gangline_schemas.events.metrics import LARGEST


def published(value: float) -> float | None:
    """The value in an event: None for a NaN."""
    if math.isnan(value):
        return None
    return max(-LARGEST, min(LARGEST, value))
