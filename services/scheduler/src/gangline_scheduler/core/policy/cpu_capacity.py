"""CpuCapacity for jobs without GPUs: CPUs and memory of a node beyond what its GPUs need.

A node keeps CPUs and memory for each of its free GPUs. That is the most that a rank of a gang with
GPUs asks for, of those that run or wait, and at least the default of a rank. A rank that the whole
node could not hold, or that wants another GPU model or other labels, does not count there. Gangs
with GPUs never see jobs without: they are placed as if these were not there. If a gang asks for
more than was kept, jobs without GPUs stop for it at once (cpu_jobs.py). So they never delay a gang
with GPUs.

Numbers are thousandths of a CPU and of a GB, as whole numbers: sums are exact.
Cost: for its capacity, one node's allocations; for `Kept`, O(groups of pending jobs + running
gangs), and for each kind of node the different requests of ranks.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

from gangline_scheduler.core.free_node import FreeNode
from gangline_scheduler.core.model import Job, Node, NodeAllocation, wanted_labels
from gangline_scheduler.core.policy.order import examples
from gangline_scheduler.core.state import State
from gangline_schemas.gpus import covered_by
from gangline_schemas.resources import Resources
from gangline_schemas.teams import line


class CpuCapacity(NamedTuple):
    """CPUs and memory, in thousandths of a CPU and of a GB."""

    cpus: int = 0
    memory: int = 0

    def less(self, other: CpuCapacity, times: int = 1) -> CpuCapacity:
        """The rest without so many of the other; below 0 where it is more."""
        return CpuCapacity(self.cpus - times * other.cpus, self.memory - times * other.memory)

    def holds(self, need: CpuCapacity) -> bool:
        """Whether there is enough of both."""
        return need.cpus <= self.cpus and need.memory <= self.memory


def of_cpus(cpus: float, memory_gb: float) -> CpuCapacity:
    """So many CPUs and GB."""
    return CpuCapacity(round(cpus * 1000), round(memory_gb * 1000))


DEFAULT_RANK = of_cpus(
    Resources.model_fields["cpus_per_gpu"].default,
    Resources.model_fields["memory_per_gpu_gb"].default,
)
"""Of a rank with a GPU, if its job says nothing."""


def need_of(job: Job) -> CpuCapacity:
    """The request of one rank of a job without GPUs."""
    need = job.spec.resources
    return of_cpus(need.cpus or 0.0, need.memory_gb or 0.0)


def over_limit(state: State, job: Job) -> str | None:
    """Why a team of its line may not have its CPUs now; None if all may."""
    wanted = job.spec.resources.cpu_thousandths(job.spec.resources.ranks)
    for team in line(state.teams, job.team):
        limit, used = team.config.cpu_limit, state.used_cpus.get(team.config.team, 0)
        if limit is not None and used + wanted > round(limit * 1000):
            return (
                f"team {team.config.team} has {used / 1000:g} of its {limit:g} CPUs for jobs "
                f"without GPUs, and the job needs {wanted / 1000:g}"
            )
        if team.config.team in state.over_cpu_budget:
            return (
                f"team {team.config.team} has spent its cpu_hours_per_month; jobs without GPUs "
                "start again with the next month (UTC), or when it is raised"
            )
    return None


class _Rank(NamedTuple):
    """One rank of a gang with GPUs: what it asks for, and of which nodes."""

    need: CpuCapacity
    models: tuple[str, ...]
    labels: tuple[tuple[str, str], ...]

    def may_run_on(self, node: FreeNode) -> bool:
        """Whether this empty node could hold it."""
        if self.models and not any(model in self.models for model, _ in node.gpus):
            return False
        if self.labels and not set(self.labels) <= set(node.labels):
            return False
        return of_cpus(node.cpus, node.memory_gb).holds(self.need)


class Kept:
    """The part of each free GPU: the most that a rank of a gang with GPUs asks for, of each."""

    def __init__(self, state: State) -> None:
        jobs = [*examples(state), *(state.jobs[job_id] for job_id in state.live)]
        asked = {
            (need.cpus_per_gpu, need.memory_per_gpu_gb, need.gpu_type, wanted_labels(spec))
            for spec, need in ((job.spec, job.spec.resources) for job in jobs)
        }
        self._ranks = [
            _Rank(of_cpus(cpus, memory_gb), covered_by(gpu_type), labels)
            for cpus, memory_gb, gpu_type, labels in asked
        ]
        self._free, self._empty = state.free, state.empty
        self._known: dict[Hashable, CpuCapacity] = {}

    def beside_gpus(self, node: Node) -> CpuCapacity:
        """The part of a schedulable node for jobs without GPUs, with what they have now."""
        free, empty = self._free.get(node.info.node_id), self._empty.get(node.info.node_id)
        if free is None or empty is None:
            return unused(node)
        return unused(node).less(self._on(empty), free.size)

    def _on(self, node: FreeNode) -> CpuCapacity:
        """Of the ranks that this empty node could hold; equal nodes keep the same."""
        kind = (node.cpus, node.memory_gb, tuple(model for model, _ in node.gpus), node.labels)
        if kind not in self._known:
            needs = [DEFAULT_RANK, *(rank.need for rank in self._ranks if rank.may_run_on(node))]
            most = CpuCapacity(max(one.cpus for one in needs), max(one.memory for one in needs))
            self._known[kind] = most
        return self._known[kind]


def unused(node: Node) -> CpuCapacity:
    """The part of a node that gangs with GPUs leave."""
    whole = of_cpus(node.info.cpus, node.info.memory_gb)
    return whole.less(_total(node.allocations)) if node.allocations else whole


def taken(node: Node) -> CpuCapacity:
    """The part of a node that jobs without GPUs have."""
    return _total(node.cpu_allocations)


def _total(allocations: Sequence[tuple[str, NodeAllocation]]) -> CpuCapacity:
    cpus = sum(round(part.cpus * 1000) for _, part in allocations)
    return CpuCapacity(cpus, sum(round(part.memory_gb * 1000) for _, part in allocations))
