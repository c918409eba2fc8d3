"""Settings of the fault manager."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from gangline_faults.core.policy.limits import FaultLimits
from gangline_faults.core.policy.timing import Timing
from gangline_faults.core.policy.trends import TrendLimits
from gangline_service.settings import DecidingSettings

TICKS_BEFORE_DEAF = 3


class FaultSettings(DecidingSettings):
    """The settings of the fault manager."""

    section: ClassVar[str] = "faults"

    heartbeat_timeout_s: Annotated[float, Field(gt=0)] = 60.0
    """A node that is silent for so long has failed; at half of it, it is suspected."""
    heartbeat_interval_s: Annotated[float, Field(gt=0, le=60)] = 1.0
    """The longest GANGLINE_HEARTBEAT_INTERVAL_S of the agents; hangs and stragglers need three."""
    settle_s: Annotated[float, Field(ge=0)] = 2.0
    """How long a rank that lost its peers waits for the exit that explains why."""
    hang_min_s: Annotated[float, Field(gt=0)] = 60.0
    """A gang that trains may be quiet for so long, however quick its steps are."""
    hang_slow_s: Annotated[float, Field(gt=0)] = 600.0
    """So long at least while its ranks do something else, or have few steps behind them."""

    refill_commits: Annotated[int, Field(ge=0)] = 6
    """After so many committed checkpoints a used restart comes back; 0: never."""
    idle_restarts: Annotated[int, Field(ge=0)] = 5
    """So many restarts in a row that got no further than before end the job; 0: never."""
    distrust_after: Annotated[int, Field(ge=0)] = 5
    """After so many failures that name it a node takes no new gangs; 0: never."""
    distrust_window_s: Annotated[float, Field(gt=0)] = 86_400.0
    """Older failures do not count."""

    straggler_after_s: Annotated[float, Field(gt=0)] = 30.0
    """A rank that is slow for so long is named as a straggler."""
    straggler_below: Annotated[float, Field(gt=0, lt=1)] = 0.7
    """A rank is slow when it does less than this share of the usual work in the same time."""
    stragglers_blamed: bool = False
    """A straggler counts as a failure of its node, towards `distrust_after`."""

    save_every_s: Annotated[float, Field(ge=0)] = 600.0
    """Least time between two save requests to a job for a predicted failure; 0: no requests."""
    hot_c: Annotated[float, Field(gt=0)] = 90.0
    """A GPU that stays so hot, or as hot as it slows down at, is a sign of one."""
    disk_free_gb: Annotated[float, Field(ge=0)] = 1.0
    """So is a disk with less space left,"""
    memory_free_gb: Annotated[float, Field(ge=0)] = 0.5
    """less memory,"""
    clock_error_s: Annotated[float, Field(gt=0)] = 1.0
    """or a clock that may be further off."""

    def limits(self) -> FaultLimits:
        """The policy's form."""
        return FaultLimits(
            refill_commits=self.refill_commits,
            idle_max=self.idle_restarts,
            distrust_after=self.distrust_after,
            distrust_window_s=self.distrust_window_s,
            stragglers_blamed=self.stragglers_blamed,
        )

    def trends(self) -> TrendLimits:
        """The policy's form."""
        return TrendLimits(
            save_every_s=self.save_every_s,
            hot_c=self.hot_c,
            disk_free_gb=self.disk_free_gb,
            memory_free_gb=self.memory_free_gb,
            clock_error_s=self.clock_error_s,
        )

    def timing(self) -> Timing:
        """The policy's form. A gap of a few ticks does not mean that the process stood still."""
        return Timing(
            heartbeat_timeout_s=self.heartbeat_timeout_s,
            heartbeat_interval_s=self.heartbeat_interval_s,
            settle_s=self.settle_s,
            hang_min_s=self.hang_min_s,
            hang_slow_s=self.hang_slow_s,
            straggler_after_s=self.straggler_after_s,
            straggler_below=self.straggler_below,
            deaf_after_s=max(
                self.heartbeat_timeout_s / 2, TICKS_BEFORE_DEAF * self.tick_interval_s
            ),
        )
