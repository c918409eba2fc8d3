"""The graph of a run: each step, and each item of a fan-out, with what it needs."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from graphlib import TopologicalSorter
from typing import Any

from gangline_schemas.pipeline_file import PipelineSpec, Step


@dataclass(frozen=True, slots=True)
class Instance:
    """A step, or one item of its fan-out. `needs` and `feeds` name instances.

    `optional`: those of `needs` whose outputs are left out if they were skipped.
    """

    name: str
    step: str
    spec: Step
    needs: tuple[str, ...]
    optional: frozenset[str]
    index: int | None = None
    item: Any = None


@dataclass(frozen=True, slots=True)
class Graph:
    """Instances by name, in an order in which each follows what it needs."""

    instances: dict[str, Instance]
    feeds: dict[str, tuple[str, ...]]
    of_step: dict[str, tuple[str, ...]]
    resumed: frozenset[str]
    """Steps from whose checkpoints others start."""


_known: dict[int, Graph] = {}
"""By the id of the spec, as long as that lives."""


def graph_of(spec: PipelineSpec) -> Graph:
    """The graph of a pipeline without cycles. Computed once for each object."""
    graph = _known.get(id(spec))
    if graph is None:
        graph = _known[id(spec)] = _graph(spec)
        weakref.finalize(spec, _known.pop, id(spec), None)
    return graph


def is_resumed(graph: Graph, name: str) -> bool:
    """Whether another step starts from the checkpoint of this one."""
    return name in graph.resumed


def _graph(spec: PipelineSpec) -> Graph:
    of_step = {name: _instances(name, step) for name, step in spec.steps.items()}
    order = TopologicalSorter({name: step.needs for name, step in spec.steps.items()})
    instances: dict[str, Instance] = {}
    feeds: dict[str, list[str]] = {}
    for name in order.static_order():
        step = spec.steps[name]
        needs = tuple(one for needed in step.needs for one in of_step[needed])
        optional = frozenset(one for needed in step.optional for one in of_step[needed])
        for number, own in enumerate(of_step[name]):
            item = (number, step.each[number]) if step.each else (None, None)
            instances[own] = Instance(own, name, step, needs, optional, *item)
            for needed in needs:
                feeds.setdefault(needed, []).append(own)
    starts = (step.resumed_step for step in spec.steps.values())
    resumed = frozenset(name for name in starts if name is not None)
    return Graph(instances, {name: tuple(fed) for name, fed in feeds.items()}, of_step, resumed)


def _instances(name: str, step: Step) -> tuple[str, ...]:
    return tuple(f"{name}-{number}" for number in range(len(step.each))) if step.each else (name,)
