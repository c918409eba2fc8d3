"""The register of handlers: one for each type of the scheduler's log."""

from __future__ import annotations

from gangline_bus.decision import Fold
from gangline_scheduler.core.state import State
from gangline_schemas.catalog import Topic

fold: Fold[State] = Fold(Topic.SCHEDULING)
"""How the events of gangline.scheduling change the state, in place."""
