"""The price of an hour of a gang: of one that has its GPUs, or by those that it may get."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from gangline_gateway.live_view import LiveView
from gangline_scheduler.core.model import Gang
from gangline_schemas.api.questions import PriceRange, StartsOn, WhatIfAnswer
from gangline_schemas.gpu_prices import GpuPrices
from gangline_schemas.gpus import covered_by, exact_name
from gangline_schemas.job import JobSpec


def price_of_gang(gang: Gang | None, prices: GpuPrices) -> float | None:
    """Of the GPUs that a gang has; None without GPUs, or where the price of some is unknown."""
    if gang is None or not gang.models:
        return None
    hour: Counter[str] = Counter()
    for model, gpus in gang.models:
        hour[exact_name(model)] += gpus * 3600
    return prices.cost(hour)


def price_per_hour(
    answer: WhatIfAnswer, spec: JobSpec, live: LiveView, prices: GpuPrices
) -> PriceRange | None:
    """Of the whole gang; None without GPUs, or where the price of some it may get is unknown.

    Without a placement these are the accepted models of nodes that are there.
    """
    if not prices.models or spec.resources.gpus == 0:
        return None
    if answer.nodes:
        parts = [_each(_models_on(part, live), prices, part.gpus) for part in answer.nodes]
    else:
        parts = [_each(_accepted(spec, live), prices, answer.gpus)]
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    return PriceRange(
        least=sum(part.least for part in known), most=sum(part.most for part in known)
    )


def _models_on(part: StartsOn, live: LiveView) -> set[str]:
    node = live.node(part.node_id)
    if node is None:
        return set()
    wanted = frozenset(part.indexes)
    return {exact_name(gpu.model) for gpu in node.info.gpus if not wanted or gpu.index in wanted}


def _accepted(spec: JobSpec, live: LiveView) -> set[str]:
    nodes = filter(None, map(live.node, live.nodes))
    there = {exact_name(gpu.model) for node in nodes for gpu in node.info.gpus}
    accepted = covered_by(spec.resources.gpu_type)
    return there.intersection(accepted) if accepted else there


def _each(models: Iterable[str], prices: GpuPrices, gpus: int) -> PriceRange | None:
    found = [prices.hour(model) for model in models]
    known = [price for price in found if price is not None]
    if not found or len(known) < len(found):
        return None
    return PriceRange(least=gpus * min(known), most=gpus * max(known))
