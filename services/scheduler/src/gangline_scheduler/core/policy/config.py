"""The scheduling policy: one choice for each part, made by configuration."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Literal

from gangline_scheduler.core.free_node import LEVELS
from gangline_scheduler.core.policy.fair_tree import FairTree
from gangline_scheduler.core.policy.order import FIFO, SJF, FairShare, Order
from gangline_scheduler.core.policy.placement import Placer, place
from gangline_scheduler.core.policy.reservation import Mode
from gangline_scheduler.core.policy.short_first import ShortFirst
from gangline_schemas.events.policy import ACTIONS
from gangline_schemas.isolation import Isolation

Switch = Literal["on", "off"]

_ORDERS: tuple[Order, ...] = (FairShare(), FairTree(), ShortFirst(), FIFO, SJF)
ORDERS: dict[str, Order] = {order.name: order for order in _ORDERS}


@dataclass(frozen=True, slots=True)
class Preemption:
    """When running gangs are stopped for waiting ones; only those that said `preemptible`.

    `preempt`, `reclaim`, `defragment` switch each of the three. A job of a priority below
    `preempt_below` may have others stopped for it.
    `checkpoint` and `restart`: the time that a stop costs a gang, besides its work since the last
    committed checkpoint. `nearly_done`: a gang that is expected to end sooner keeps running;
    `min_runtime`: so long an attempt runs before it may be stopped, and at most `max_preemptions`
    times a job is, and once more for each `one_more_after` that it has run. `horizon`: starting
    sooner counts for no more than this.
    `reclaim_worth`: a guarantee is worth so much waiting of the job that is owed its GPUs; None:
    whatever it costs. `whole_gangs`: a gang that is only in part above its team's guarantee may be
    stopped for one that is owed, if no other can be. `max_moves_per_hour`: gangs moved to
    defragment. `reserve_margin`: GPUs stay reserved for so long after the last gang had to be gone.
    `most_per_pass`: jobs for which room is made in one pass.
    """

    preempt: Switch = "on"
    reclaim: Switch = "on"
    defragment: Switch = "on"
    preempt_below: int = 20
    checkpoint: timedelta = timedelta(seconds=30)
    restart: timedelta = timedelta(seconds=60)
    min_runtime: timedelta = timedelta(minutes=10)
    nearly_done: timedelta = timedelta(minutes=5)
    max_preemptions: int = 3
    one_more_after: timedelta = timedelta(hours=12)
    horizon: timedelta = timedelta(hours=24)
    reclaim_worth: timedelta | None = None
    whole_gangs: Switch = "on"
    max_moves_per_hour: int = 20
    reserve_margin: timedelta = timedelta(seconds=75)
    most_per_pass: int = 5

    def may_stop_again(self, preemptions: int, ran_s: float) -> bool:
        """Whether a job that ran for so long and was stopped so often may be stopped once more."""
        more = int(ran_s // self.one_more_after.total_seconds()) if self.max_preemptions else 0
        return preemptions < self.max_preemptions + more


@dataclass(frozen=True, slots=True)
class Policy:
    """How the scheduler decides. The defaults are the platform's own.

    `reserve_after`: a job that waited longer gets a reservation, in the given mode; a node that
    failed is expected back within `node_return`.
    `default_runtime`: for jobs that say nothing, of teams without a past.
    `mix_from`: nodes of a weaker isolation hold one team's gangs at a time; None: all mix them.
    `resize_every`: an elastic gang changes its size at most so often. `drain_within`: a gang leaves
    a draining node by then, saved or not. `estimate_starts`: of the first jobs, to know their error
    (waiting_reasons.py). `give_reasons`: write why jobs wait; simulations do not.
    `actions`: the actions of a tick, in their order; one that is left out is off.
    """

    order: Order = field(default_factory=FairShare)
    placer: Placer = place
    levels: tuple[str, ...] = LEVELS
    reservation: Mode = "easy"
    reserve_after: timedelta = timedelta(minutes=30)
    node_return: timedelta = timedelta(minutes=15)
    default_runtime: timedelta = timedelta(hours=24)
    resize_every: timedelta = timedelta(minutes=30)
    drain_within: timedelta = timedelta(minutes=30)
    preemption: Preemption = field(default_factory=Preemption)
    estimate_starts: bool = False
    give_reasons: bool = True
    mix_from: Isolation | None = None
    actions: tuple[str, ...] = ACTIONS


def actions_named(names: tuple[str, ...]) -> tuple[str, ...]:
    """These actions. Raises ValueError for an unknown one, and for one that is there twice."""
    for at, name in enumerate(names):
        if name not in ACTIONS:
            raise ValueError(f"actions: '{name}' is not one of {', '.join(ACTIONS)}")
        if name in names[:at]:
            raise ValueError(
                f"actions: '{name}' is there twice; name each at most once: {', '.join(ACTIONS)}"
            )
    return names


def order_named(name: str) -> Order:
    """The order of this name. Raises ValueError that lists what there is."""
    if name not in ORDERS:
        raise ValueError(f"order: '{name}' is not one of {', '.join(sorted(ORDERS))}")
    return ORDERS[name]
