"""Settings of the scheduler."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, ClassVar

from pydantic import Field, field_validator

from gangline_scheduler.decide import Limits
from gangline_scheduler.free import LEVELS
from gangline_scheduler.policy.config import Policy, order_named
from gangline_scheduler.policy.reservation import Mode
from gangline_service.settings import DecidingSettings


class SchedulerSettings(DecidingSettings):
    """What the scheduler can be told."""

    section: ClassVar[str] = "scheduler"

    order: str = "fair"
    """Which job comes first: fair, drf, fifo or sjf."""
    levels: tuple[str, ...] = LEVELS
    """The topology levels between a node and the cluster, closest first."""
    reservation: Mode = "easy"
    """off; easy: the first job that waited too long gets a reservation; conservative: ten do."""
    reserve_after_minutes: Annotated[float, Field(ge=0)] = 30.0
    """A job that waited longer than this gets a reservation: a start that nobody may delay."""
    default_runtime_hours: Annotated[float, Field(gt=0)] = 24.0
    """What a job is taken for that says nothing and whose team has no past jobs."""
    stop_margin_s: Annotated[float, Field(ge=0)] = 15.0
    """How long after its deadline a stopping gang is still waited for."""

    @field_validator("order")
    @classmethod
    def _order_is_known(cls, name: str) -> str:
        return order_named(name).name

    def policy(self) -> Policy:
        """As the decider takes it."""
        return Policy(
            order=order_named(self.order),
            levels=self.levels,
            reservation=self.reservation,
            reserve_after=timedelta(minutes=self.reserve_after_minutes),
            default_runtime=timedelta(hours=self.default_runtime_hours),
        )

    def limits(self) -> Limits:
        """As the decider takes them."""
        return Limits(
            stop_margin=timedelta(seconds=self.stop_margin_s),
        )
