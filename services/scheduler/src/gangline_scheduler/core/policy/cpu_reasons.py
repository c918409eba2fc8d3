"""Why a job without GPUs waits: one dominant reason and the next step."""

from __future__ import annotations

from typing import NamedTuple

from gangline_scheduler.core.model import Job
from gangline_scheduler.core.policy.cpu_capacity import need_of, over_limit
from gangline_scheduler.core.policy.cpu_placement import CpuNodes
from gangline_scheduler.core.policy.reasons import run_images
from gangline_scheduler.core.state import State
from gangline_scheduler.core.values import replace
from gangline_schemas.job import WaitCode


class CpuReason(NamedTuple):
    """The kind, and one sentence with numbers."""

    code: WaitCode
    message: str


def reason(state: State, nodes: CpuNodes, job: Job) -> CpuReason:
    """The reason now. Cost: O(nodes)."""
    above = over_limit(state, job)
    if above is not None:
        return CpuReason("quota", above)
    need, count = need_of(job), job.spec.resources.ranks
    wanted = f"{need.cpus / 1000:g} CPUs and {need.memory / 1000:g} GB"
    where = "a node" if count == 1 else f"each of {count} nodes"
    number = len if count == 1 else nodes.most_together
    able, fitting = number(nodes.able(job, need)), number(nodes.fitting(job, need))
    if able < count:
        if job.spec.image is not None and nodes.able(_on_its_own(job), need)[count - 1 :]:
            every = list(state.nodes.values())
            do = sum(node.info.runs_images for node in every)
            return CpuReason(
                "shape",
                f"needs {wanted} on {where} that runs images; {run_images(do, len(every))}",
            )
        most = nodes.largest()
        return CpuReason(
            "shape",
            f"needs {wanted} on {where}; {able} could hold it: jobs without GPUs may have up to "
            f"{most.cpus / 1000:g} CPUs and {most.memory / 1000:g} GB of one node, beside what its "
            "GPUs keep. Ask for less, or add nodes without GPUs",
        )
    if fitting < count:
        return CpuReason(
            "capacity",
            f"needs {wanted} on {where}; {fitting} of the {able} that could hold it have room now. "
            "It starts when other jobs without GPUs end",
        )
    return CpuReason("order", f"needs {wanted} on {where}; jobs before it in the queue come first")


def _on_its_own(job: Job) -> Job:
    """The same without its image."""
    return replace(job, spec=job.spec.model_copy(update={"image": None}))
