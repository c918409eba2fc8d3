"""Settings of the scheduler."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, ClassVar

from pydantic import Field

from gangline_scheduler.decide import Limits
from gangline_service.settings import ServiceSettings


class SchedulerSettings(ServiceSettings):
    """What the scheduler can be told."""

    section: ClassVar[str] = "scheduler"

    starvation_guard_minutes: Annotated[float, Field(gt=0)] = 30.0
    """A job that waited longer than this gets the nodes it needs kept for it."""
    stop_margin_s: Annotated[float, Field(ge=0)] = 15.0
    """How long after its deadline a stopping gang is still waited for."""

    def limits(self) -> Limits:
        """As the decider takes them."""
        return Limits(
            guard=timedelta(minutes=self.starvation_guard_minutes),
            stop_margin=timedelta(seconds=self.stop_margin_s),
        )
