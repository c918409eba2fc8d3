"""Nodes, gangs and their steps in short form: a test names the fields that it cares about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from gangline_schemas.events.faults import FailureCause, GangFailed
from gangline_schemas.events.scheduling import (
    GangAllocated,
    GangReleased,
    NodeAssignment,
    ReleaseReason,
    Rendezvous,
)
from gangline_schemas.events.steps import WorkerStep
from gangline_schemas.events.workers import GpuInfo, NodeInfo
from gangline_schemas.job import JobSpec

ADDRESS, PORT = "127.0.0.1", 29_500


def node_info(
    node_id: str = "n1",
    gpus: int = 2,
    *,
    model: str = "h100",
    gpu_memory_gb: float = 80,
    **fields: Any,
) -> NodeInfo:
    """A node with room for any small job."""
    each = [GpuInfo(index=i, model=model, memory_gb=gpu_memory_gb) for i in range(gpus)]
    given: dict[str, Any] = {
        "node_id": node_id, "incarnation": "i", "address": ADDRESS, "hostname": node_id,
        "gpus": tuple(each), "cpus": 64, "memory_gb": 512, "rendezvous_ports": (PORT,),
    }  # fmt: skip
    return NodeInfo(**(given | fields))


def assigned(
    node_id: str = "n1",
    gpus: Sequence[int] = (0, 1),
    first_rank: int = 0,
    *,
    incarnation: str = "i",
    address: str = ADDRESS,
    copies_port: int | None = None,
) -> NodeAssignment:
    """GPUs of a node, for ranks from this one on."""
    return NodeAssignment(
        node_id=node_id, incarnation=incarnation, address=address, gpus=tuple(gpus),
        first_rank=first_rank, copies_port=copies_port,
    )  # fmt: skip


def part_of(node: NodeInfo, gpus: Sequence[int], first_rank: int = 0) -> NodeAssignment:
    """GPUs of a node that has joined."""
    return assigned(
        node.node_id, gpus, first_rank, incarnation=node.incarnation, address=node.address,
        copies_port=node.copies_port,
    )  # fmt: skip


def spread(
    node_ids: Sequence[str], gpus: int = 1, *, incarnation: str = "i", address: str = ADDRESS
) -> tuple[NodeAssignment, ...]:
    """So many GPUs of each of these nodes, in the order of ranks; 0: a rank without GPUs."""
    return tuple(
        assigned(
            node_id, range(gpus), place * max(gpus, 1), incarnation=incarnation, address=address
        )
        for place, node_id in enumerate(node_ids)
    )


def gang_allocated(
    job_id: str, spec: JobSpec, *nodes: NodeAssignment, attempt: int = 1, **fields: Any
) -> GangAllocated:
    """A gang there. Its team is the spec's; each GPU has a rank, and each node without one."""
    given: dict[str, Any] = {
        "job_id": job_id, "attempt": attempt, "team": spec.team, "nodes": nodes, "spec": spec,
        "world_size": sum(max(len(node.gpus), 1) for node in nodes),
        "rendezvous": Rendezvous(address=nodes[0].address, port=PORT),
    }  # fmt: skip
    return GangAllocated(**(given | fields))


def gang_released(
    job_id: str,
    attempt: int,
    at: datetime,
    reason: ReleaseReason = ReleaseReason.RESTARTING,
    gpu_seconds: float = 0,
) -> GangReleased:
    """A gang that was allocated then has no GPUs any more."""
    return GangReleased(
        job_id=job_id, attempt=attempt, reason=reason, allocated_at=at, gpu_seconds=gpu_seconds
    )


def gang_failed(
    job_id: str,
    attempt: int,
    at: datetime,
    cause: FailureCause = FailureCause.NODE,
    action: str = "restart",
    **fields: Any,
) -> GangFailed:
    """The fault manager's verdict upon a gang."""
    given: dict[str, Any] = {
        "job_id": job_id, "attempt": attempt, "cause": cause, "action": action,
        "message": "n1 is gone", "restarts_used": 1, "restarts_max": 3, "failed_at": at,
    }  # fmt: skip
    return GangFailed(**(given | fields))


def reported(
    run_id: str, steps: Sequence[int], metrics: Mapping[str, Sequence[float | None]], **fields: Any
) -> WorkerStep:
    """Steps of a job of nlp: those of rank 0 in the first attempt, unless said otherwise."""
    given: dict[str, Any] = {
        "run_id": run_id, "team": "nlp", "attempt": 1, "rank": 0, "step": tuple(steps),
        "time_ms": tuple(steps), "metrics": {name: tuple(of) for name, of in metrics.items()},
    }  # fmt: skip
    return WorkerStep(**(given | fields))
