"""The memory, CPUs, GPUs and root that the ranks of a gang have on this node."""

from __future__ import annotations

from pathlib import Path

from gangline_schemas.events.workers import NodeInfo
from gangline_schemas.rank_limits import rank_share
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
    return int(rank_share(need.memory_per_gpu_gb, node.memory_gb, len(node.gpus)) * _GIB)


def assigned_gpus(node: NodeInfo, workspace: GangWorkspace) -> tuple[int, ...]:
    """The indexes of the gang's GPUs on this node; slots that are no GPUs have none."""
    known = {gpu.index for gpu in node.gpus if gpu.model != "cpu"}
    return tuple(index for index in workspace.assignment.gpus if index in known)


def visible_gpus(node: NodeInfo, workspace: GangWorkspace, *, in_pod: bool) -> str:
    """CUDA_VISIBLE_DEVICES of its ranks.

    A pod, and a sandbox with devices by CDI, have GPUs of their own, counted from 0.
    """
    found = assigned_gpus(node, workspace)
    own = in_pod or workspace.devices is not None
    return ",".join(map(str, range(len(found)) if own else found))


def gang_limits(node: NodeInfo, workspace: GangWorkspace) -> GangLimits:
    """Of all its ranks here."""
    memory_bytes = len(workspace.assignment.ranks) * rank_bytes(node, workspace)
    return GangLimits(memory_bytes, workspace.allocation.spec.resources.cpus)


def sandbox_plan(node: NodeInfo, layers: Path, workspace: GangWorkspace) -> SandboxPlan | None:
    """How another sandbox must be to become this gang's; None where it has no image."""
    if (image := workspace.image) is None:
        return None
    root = ImageRoot(layers, image.roots, workspace.workdir, workspace.devices)
    own = rank_bytes(node, workspace)
    return SandboxPlan(root, gang_limits(node, workspace), workspace.owner, own)
