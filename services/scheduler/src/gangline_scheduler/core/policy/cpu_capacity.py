"""CpuCapacity for jobs without GPUs: CPUs and memory of a node beyond what its GPUs need.

A node keeps CPUs and memory for each of its free GPUs. That is the most that a rank of a gang with
GPUs asks for, of those that run or wait, and at least the default of a rank. A rank that the whole
node could not hold does not count there. Gangs with GPUs never see jobs without: they are placed as
if these were not there. If a gang asks for more than was kept, jobs without GPUs stop for it at
once (cpu_jobs.py). So they never delay a gang with GPUs.

Numbers are thousandths of a CPU and of a GB, as whole numbers: sums are exact.
Cost: for its capacity, one node's allocations; for `Kept`, O(groups of pending jobs + running
gangs), and for each size of node the different requests of ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gangline_scheduler.core.model import Job, Node, NodeAllocation
from gangline_scheduler.core.policy.order import examples
from gangline_scheduler.core.state import State
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


class Kept:
    """The part of each free GPU: the most that a rank of a gang with GPUs asks for, of each."""

    def __init__(self, state: State) -> None:
        jobs = [*examples(state), *(state.jobs[job_id] for job_id in state.live)]
        needs = (job.spec.resources for job in jobs)
        self._needs = {of_cpus(need.cpus_per_gpu, need.memory_per_gpu_gb) for need in needs}
        self._by_size: dict[CpuCapacity, CpuCapacity] = {}

    def on(self, node: Node) -> CpuCapacity:
        """Of the ranks that this node could hold."""
        size = of_cpus(node.info.cpus, node.info.memory_gb)
        if size not in self._by_size:
            needs = [DEFAULT_RANK, *(need for need in self._needs if size.holds(need))]
            self._by_size[size] = CpuCapacity(
                max(need.cpus for need in needs), max(need.memory for need in needs)
            )
        return self._by_size[size]


def beside_gpus(node: Node, kept: Kept) -> CpuCapacity:
    """The part of a node for jobs without GPUs, with what they have now."""
    busy = {index for _, part in node.allocations for index in part.gpus}
    free = sum(gpu.index not in busy for gpu in node.info.gpus)  # it may have come back with fewer
    return unused(node).less(kept.on(node), free)


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
