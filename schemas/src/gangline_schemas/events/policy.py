"""gangline.scheduling: the settings that the scheduler's decisions follow."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from gangline_schemas.base import Event, Model
from gangline_schemas.isolation import Isolation
from gangline_schemas.limits import Few, Name, Release, Seconds

ACTIONS = ("expire", "drain", "allocate", "resize", "make_room", "backfill", "grow", "explain")
"""The actions of the scheduler's tick, in the default order."""


class PreemptionSettings(Model):
    """When running gangs are stopped for waiting ones; the settings `preempt*` and the like."""

    preempt: Literal["on", "off"]
    reclaim: Literal["on", "off"]
    defragment: Literal["on", "off"]
    preempt_below: Annotated[int, Field(ge=0, le=101)]
    checkpoint_s: Seconds
    restart_s: Seconds
    min_runtime_s: Seconds
    nearly_done_s: Seconds
    max_preemptions: Few
    one_more_after_s: Seconds
    horizon_s: Seconds
    reclaim_worth_s: Seconds | None = None
    whole_gangs: Literal["on", "off"]
    max_moves_per_hour: Few
    reserve_margin_s: Seconds
    most_per_pass: Few


class PolicyConfigured(Event):
    """The scheduler decides by these settings from here on.

    With its log they make its queue order, its forecasts and its answers the same elsewhere.
    """

    type: ClassVar[str] = "policy.configured"
    order: Name
    actions: tuple[Name, ...] = Field(
        default=ACTIONS,
        max_length=16,
        description="Actions of a tick, in their order; one left out is off.",
    )
    levels: tuple[Name, ...] = Field(
        max_length=16, description="Topology levels between a node and the cluster, closest first."
    )
    reservation: Literal["off", "easy", "conservative"]
    reserve_after_s: Seconds
    node_return_s: Seconds
    default_runtime_s: Seconds
    resize_every_s: Seconds
    drain_within_s: Seconds
    preemption: PreemptionSettings
    estimate_starts: bool
    mix_from: Isolation | None = Field(
        default=None,
        description="Nodes of a weaker isolation hold one team's gangs at a time; None: all mix.",
    )
    stop_margin_s: Seconds
    save_wait_s: Seconds
    oldest_agents: Release | None = Field(
        default=None,
        description="The oldest release of a node agent that is accepted; None: any.",
    )
