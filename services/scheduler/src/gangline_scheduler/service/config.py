"""Settings of the scheduler."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, ClassVar

from pydantic import Field, field_validator

from gangline_scheduler.core.free_node import LEVELS
from gangline_scheduler.core.policy.config import (
    Policy,
    Preemption,
    Switch,
    actions_named,
    order_named,
)
from gangline_scheduler.core.policy.configured import Limits
from gangline_scheduler.core.policy.reservation import Mode
from gangline_schemas.events.policy import ACTIONS
from gangline_schemas.features import oldest_accepted
from gangline_schemas.isolation import Isolation
from gangline_schemas.limits import SECONDS_MAX, Few, Name
from gangline_service.settings import DecidingSettings

RESERVE_MARGIN_S = 60.0
"""GPUs stay reserved for this long after the last gang that makes room must be gone."""
Seconds = Annotated[float, Field(ge=0, le=SECONDS_MAX - RESERVE_MARGIN_S)]
Minutes = Annotated[float, Field(ge=0, le=SECONDS_MAX / 60)]
Hours = Annotated[float, Field(gt=0, le=SECONDS_MAX / 3600)]


class SchedulerSettings(DecidingSettings):
    """The settings of the scheduler."""

    section: ClassVar[str] = "scheduler"

    order: str = "fair"
    """Which job comes first: fair, drf, short, fifo or sjf."""
    actions: Annotated[tuple[Name, ...], Field(max_length=16)] = ACTIONS
    """The actions of a tick, in their order; one that is left out is off."""
    levels: Annotated[tuple[Name, ...], Field(max_length=16)] = LEVELS
    """The topology levels between a node and the cluster, closest first."""
    reservation: Mode = "easy"
    """off; easy: the first job that waited too long gets a reservation; conservative: ten do."""
    reserve_after_minutes: Minutes = 30.0
    """A job that waited longer than this gets a reservation: a start that no job may delay."""
    node_return_minutes: Minutes = 15.0
    """A failed node is expected back for so long; what is left of its gangs' GPUs is kept."""
    default_runtime_hours: Hours = 24.0
    """The expected time of a job without a stated one whose team has no past jobs."""
    resize_every_minutes: Minutes = 30.0
    """An elastic gang is stopped for another size at most so often."""
    drain_within_minutes: Minutes = 30.0
    """A gang leaves a draining node after its next checkpoint, or when this has passed."""
    mix_teams_from: Isolation = Isolation.NONE
    """Nodes of a weaker isolation hold one team's gangs at a time; none: all mix teams."""
    estimate_starts: bool = True
    """Estimate the start of the first jobs that wait, so that explain knows its own error."""
    stop_margin_s: Seconds = 15.0
    """How long after its deadline a stopping gang is still waited for."""
    save_wait_s: Seconds = 600.0
    """A gang that failed waits so long at most for what its nodes have saved to be stored."""
    preempt: Switch = "on"
    """Stop preemptible jobs for urgent ones that stand better, when that is worth its cost."""
    reclaim: Switch = "on"
    """Stop preemptible jobs of teams above their guarantee for a team below its own."""
    defragment: Switch = "on"
    """Move preemptible jobs so that a gang fits for which enough GPUs are free, but apart."""
    preempt_below: Annotated[int, Field(ge=0, le=101)] = 20
    """A job of a priority below this is urgent."""
    preempt_checkpoint_s: Seconds = 30.0
    """How long a stopping gang is taken to save."""
    preempt_restart_s: Seconds = 60.0
    """How long it is taken to start again."""
    preempt_min_runtime_minutes: Minutes = 10.0
    """A gang that started less long ago is not stopped for others."""
    preempt_nearly_done_minutes: Minutes = 5.0
    """Nor is one that is expected to end sooner than this."""
    preempt_most: Few = 3
    """Nor a job that was stopped so often, and once more for each 12 hours that it has run."""
    preempt_horizon_hours: Hours = 24.0
    """Starting sooner counts for no more than this."""
    reclaim_worth_hours: Hours | None = None
    """A guarantee is worth so much waiting; unset: whatever stopping the others costs."""
    reclaim_whole_gangs: Switch = "on"
    """If no other can be stopped for an owed job: a gang that its team borrowed only in part."""
    defragment_moves_per_hour: Few = 20
    """Gangs that are moved in any hour."""

    @field_validator("order")
    @classmethod
    def _order_is_known(cls, name: str) -> str:
        return order_named(name).name

    @field_validator("actions")
    @classmethod
    def _actions_are_known(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        return actions_named(names)

    def policy(self) -> Policy:
        """As the decider takes it."""
        return Policy(
            actions=self.actions,
            order=order_named(self.order),
            levels=self.levels,
            mix_from=self.mix_teams_from if self.mix_teams_from.strength else None,
            reservation=self.reservation,
            reserve_after=timedelta(minutes=self.reserve_after_minutes),
            node_return=timedelta(minutes=self.node_return_minutes),
            default_runtime=timedelta(hours=self.default_runtime_hours),
            resize_every=timedelta(minutes=self.resize_every_minutes),
            drain_within=timedelta(minutes=self.drain_within_minutes),
            preemption=self._preemption(),
            estimate_starts=self.estimate_starts,
        )

    def _preemption(self) -> Preemption:
        return Preemption(
            preempt=self.preempt,
            reclaim=self.reclaim,
            defragment=self.defragment,
            preempt_below=self.preempt_below,
            checkpoint=timedelta(seconds=self.preempt_checkpoint_s),
            restart=timedelta(seconds=self.preempt_restart_s),
            min_runtime=timedelta(minutes=self.preempt_min_runtime_minutes),
            nearly_done=timedelta(minutes=self.preempt_nearly_done_minutes),
            max_preemptions=self.preempt_most,
            horizon=timedelta(hours=self.preempt_horizon_hours),
            reclaim_worth=(
                None
                if self.reclaim_worth_hours is None
                else timedelta(hours=self.reclaim_worth_hours)
            ),
            whole_gangs=self.reclaim_whole_gangs,
            max_moves_per_hour=self.defragment_moves_per_hour,
            reserve_margin=timedelta(seconds=self.stop_margin_s + RESERVE_MARGIN_S),
        )

    def limits(self) -> Limits:
        """As the decider takes them, with the oldest agents that this release accepts."""
        return Limits(
            stop_margin=timedelta(seconds=self.stop_margin_s),
            save_wait=timedelta(seconds=self.save_wait_s),
            oldest_agents=oldest_accepted(),
        )
