"""The graph of a run: each step, and each item of a fan-out, with what it needs."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from graphlib import TopologicalSorter
from typing import Any

from gangline_schemas.pipeline_file import PipelineSpec, Step

_KEPT = 64


@dataclass(frozen=True, slots=True)
class Instance:
    """A step, or one item of its fan-out. `needs` and `feeds` name instances."""

    name: str
    step: str
    spec: Step
    needs: tuple[str, ...]
    index: int | None = None
    item: Any = None


@dataclass(frozen=True, slots=True)
class Graph:
    """Instances by name, in an order in which each follows what it needs."""

    instances: dict[str, Instance]
    feeds: dict[str, tuple[str, ...]]
    of_step: dict[str, tuple[str, ...]]


_known: OrderedDict[int, tuple[PipelineSpec, Graph]] = OrderedDict()


def graph_of(spec: PipelineSpec) -> Graph:
    """The graph of a pipeline without cycles. Computed once for each object of the last 64."""
    found = _known.get(id(spec))
    if found is not None and found[0] is spec:
        return found[1]
    graph = _graph(spec)
    _known[id(spec)] = (spec, graph)
    while len(_known) > _KEPT:
        _known.popitem(last=False)
    return graph


def _graph(spec: PipelineSpec) -> Graph:
    of_step = {name: _instances(name, step) for name, step in spec.steps.items()}
    order = TopologicalSorter({name: step.needs for name, step in spec.steps.items()})
    instances: dict[str, Instance] = {}
    feeds: dict[str, list[str]] = {}
    for name in order.static_order():
        step = spec.steps[name]
        needs = tuple(one for needed in step.needs for one in of_step[needed])
        for number, own in enumerate(of_step[name]):
            item = (number, step.each[number]) if step.each else (None, None)
            instances[own] = Instance(own, name, step, needs, *item)
            for needed in needs:
                feeds.setdefault(needed, []).append(own)
    return Graph(instances, {name: tuple(fed) for name, fed in feeds.items()}, of_step)


def _instances(name: str, step: Step) -> tuple[str, ...]:
    return tuple(f"{name}-{number}" for number in range(len(step.each))) if step.each else (name,)
