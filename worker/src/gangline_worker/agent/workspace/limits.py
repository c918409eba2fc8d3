"""The memory and CPUs that the ranks of a gang may take on this node."""

from __future__ import annotations

from gangline_schemas.events.workers import NodeInfo
from gangline_worker.agent.isolation.groups import GangLimits
from gangline_worker.agent.isolation.sandbox import ImageRoot
from gangline_worker.agent.runtime.spares import SandboxPlan

from .prepare import GangWorkspace

_GIB = 1024**3


def rank_bytes(node: NodeInfo, workspace: GangWorkspace) -> int:
    """The memory of each rank: as much as it asked for, or its share if that is more.

    A rank without a GPU has no share: it may take what it asked for.
    """
    need = workspace.allocation.spec.resources
    if need.memory_gb is not None:
        return int(need.memory_gb * _GIB)
    share = node.memory_gb / len(node.gpus)
    return int(max(share, need.memory_per_gpu_gb) * _GIB)


def gang_limits(node: NodeInfo, workspace: GangWorkspace) -> GangLimits:
    """Of all its ranks here."""
    memory_bytes = len(workspace.assignment.ranks) * rank_bytes(node, workspace)
    return GangLimits(memory_bytes, workspace.allocation.spec.resources.cpus)


def sandbox_plan(node: NodeInfo, workspace: GangWorkspace, root: ImageRoot) -> SandboxPlan:
    """How another sandbox must be to become this gang's."""
    own = rank_bytes(node, workspace)
    return SandboxPlan(root, gang_limits(node, workspace), workspace.owner, own)
