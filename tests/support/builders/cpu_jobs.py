"""Nodes and jobs without GPUs for tests of the scheduler."""

from __future__ import annotations

from gangline_schemas.base import Event
from gangline_schemas.events.quota import JobAdmitted
from gangline_schemas.events.workers import NodeInfo
from gangline_schemas.job import JobSpec
from support.builders.deciding import spec
from support.builders.scheduler import Cluster, node

PORTS = tuple(range(7000, 7032))


def cpu_node(node_id: str, cpus: float = 16, memory_gb: float = 64) -> NodeInfo:
    plain = node(node_id, 0, cpus=cpus, ports=PORTS)
    return plain.model_copy(update={"cpu_only": True, "memory_gb": memory_gb})


def gpu_node(node_id: str, gpus: int = 4, cpus: float = 16, **fields: object) -> NodeInfo:
    return node(node_id, gpus, cpus=cpus, ports=PORTS, **fields)  # type: ignore[arg-type]


def cpu_spec(
    cpus: float = 4,
    memory_gb: float = 8,
    nodes: int | None = None,
    of_team: str = "nlp",
    **fields: object,
) -> JobSpec:
    resources: dict[str, object] = {"gpus": 0, "cpus": cpus, "memory_gb": memory_gb}
    if nodes is not None:
        resources["nodes"] = nodes
    return spec(of_team, 1, resources=resources, **fields)


def submit(cluster: Cluster, job_id: str, wanted: JobSpec | None = None) -> list[Event]:
    wanted = wanted or cpu_spec()
    return cluster.give(
        JobAdmitted(job_id=job_id, spec=wanted, user="ada", submitted_at=cluster.now)
    )
