"""The scheduling policy: one choice for each part, made by configuration."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta

from gangline_scheduler.free import LEVELS
from gangline_scheduler.policy.fair_tree import FairTree
from gangline_scheduler.policy.order import FIFO, SJF, FairShare, Order
from gangline_scheduler.policy.placement import Placer, place
from gangline_scheduler.policy.reservation import Mode

ORDERS: dict[str, Order] = {order.name: order for order in (FairShare(), FairTree(), FIFO, SJF)}


@dataclass(frozen=True, slots=True)
class Policy:
    """How the scheduler decides. The defaults are the platform's own.

    `reserve_after`: a job that waited longer gets a reservation, in the given mode.
    `default_runtime`: for jobs that say nothing, of teams without a past.
    """

    order: Order = field(default_factory=FairShare)
    placer: Placer = place
    levels: tuple[str, ...] = LEVELS
    reservation: Mode = "easy"
    reserve_after: timedelta = timedelta(minutes=30)
    default_runtime: timedelta = timedelta(hours=24)


def order_named(name: str) -> Order:
    """The order of this name. Raises ValueError that lists what there is."""
    if name not in ORDERS:
        raise ValueError(f"order: '{name}' is not one of {', '.join(sorted(ORDERS))}")
    return ORDERS[name]
