"""Where a job without GPUs goes: one rank on each of its nodes, nodes without GPUs first.

Among these the nodes that it fills best, then by name. A job that has waited longer than the guard
and does not fit closes the nodes that it will have, those with the most room, to jobs behind it.
Cost: O(nodes) for each kind of job that is tried in a pass.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from gangline_scheduler.core.free_node import island_of, path_of
from gangline_scheduler.core.model import CLUSTER, NODE, Job, Node, wanted_labels
from gangline_scheduler.core.policy.cpu_capacity import (
    CpuCapacity,
    Kept,
    need_of,
    taken,
)
from gangline_scheduler.core.state import State


class CpuNodes:
    """The nodes in one pass, with what jobs without GPUs may still take of each."""

    def __init__(self, state: State) -> None:
        self._state = state
        kept = Kept(state)
        nodes = (node for node in state.nodes.values() if node.schedulable)
        self._whole = {node.info.node_id: (node, kept.beside_gpus(node)) for node in nodes}
        self._left = {
            name: whole.less(taken(node)) if node.cpu_allocations else whole
            for name, (node, whole) in self._whole.items()
        }
        self._places = {name: _places(node) for name, (node, _) in self._whole.items()}
        self._closed: set[str] = set()

    def place(self, job: Job) -> list[str] | None:
        """The nodes of its ranks, in order; None, and nothing taken, if it does not fit now."""
        need, count = need_of(job), job.spec.resources.ranks
        fitting = [name for name in self.fitting(job, need) if name not in self._closed]
        if len(fitting) < count:
            return None
        fitting.sort(key=lambda name: self._preference(name, need, job))
        chosen = self._together(fitting, count)
        if chosen is None:
            return None
        for name in chosen:
            self._left[name] = self._left[name].less(need)
            self._places[name] -= 1
        return sorted(chosen)

    def close_for(self, job: Job) -> bool:
        """Keep jobs behind this one off the nodes that it will have; whether there are such."""
        need, count = need_of(job), job.spec.resources.ranks
        able = [name for name in self.able(job, need) if name not in self._closed]
        if len(able) < count:
            return False
        able.sort(key=lambda name: (-self._left[name].cpus, -self._left[name].memory, name))
        chosen = self._together(able, count)
        self._closed.update(chosen or ())
        return chosen is not None

    def fitting(self, job: Job, need: CpuCapacity) -> list[str]:
        """The nodes that hold a rank of it now."""
        labels = set(wanted_labels(job.spec))
        return [
            name
            for name, left in self._left.items()
            if left.holds(need) and self._places[name] > 0
            if self._accepts(self._whole[name][0], job, labels, now=True)
        ]

    def able(self, job: Job, need: CpuCapacity) -> list[str]:
        """The nodes that would hold a rank of it if no other job without GPUs ran there."""
        labels = set(wanted_labels(job.spec))
        return [
            name
            for name, (node, whole) in self._whole.items()
            if whole.holds(need) and self._accepts(node, job, labels, now=False)
        ]

    def most_together(self, names: Iterable[str]) -> int:
        """How many of them reach each other at most."""
        islands = Counter(island_of(self._whole[name][0]) for name in names)
        return max(islands.values(), default=0)

    def _together(self, names: list[str], count: int) -> list[str] | None:
        """The first so many that reach each other; None: there are not so many."""
        islands: dict[str, list[str]] = {}
        for name in names:
            members = islands.setdefault(island_of(self._whole[name][0]), [])
            members.append(name)
            if len(members) == count:
                return members
        return None

    def largest(self) -> CpuCapacity:
        """The most CPUs and the most memory that a job without GPUs may have of one node."""
        wholes = [whole for _, whole in self._whole.values()] or [CpuCapacity()]
        cpus, memory = max(one.cpus for one in wholes), max(one.memory for one in wholes)
        return CpuCapacity(max(0, cpus), max(0, memory))

    def _preference(
        self, name: str, need: CpuCapacity, job: Job
    ) -> tuple[bool, bool, int, int, str]:
        left = self._left[name].less(need)
        avoided = any(item.node_id == name for item in job.avoid)
        return avoided, bool(self._whole[name][0].info.gpus), left.cpus, left.memory, name

    def _accepts(self, node: Node, job: Job, labels: set[tuple[str, str]], *, now: bool) -> bool:
        """Whether its labels, its past failures and its isolation let the job run there."""
        if labels and not labels.issubset(node.labels):
            return False
        for item in job.avoid:
            if item.required and (item.node_id, item.admission) == (
                node.info.node_id,
                node.admission,
            ):
                return False
        if not now or self._state.mix_from is None:
            return True
        return all(team == job.team for team in teams_apart(self._state, node))


def _places(node: Node) -> int:
    """How many more jobs without GPUs it takes: its GPUs keep a port for a rendezvous each."""
    return len(node.info.rendezvous_ports) - len(node.info.gpus) - len(node.cpu_allocations)


def closest_level(nodes: Sequence[Node], levels: tuple[str, ...]) -> str:
    """The closest level that holds all these nodes."""
    paths = [path_of(node, levels) for node in nodes]
    same = (len({path[at] for path in paths}) == 1 for at in range(len(levels) + 2))
    return (NODE, *levels, CLUSTER)[[*same].index(True)]


def teams_apart(state: State, node: Node) -> list[str]:
    """The teams that run on a node that holds one team's gangs at a time; [] on others."""
    mix_from, isolation = state.mix_from, node.info.isolation
    if mix_from is None or isolation.strength >= mix_from.strength:
        return []
    return [allocation.team for _, allocation in (*node.allocations, *node.cpu_allocations)]
