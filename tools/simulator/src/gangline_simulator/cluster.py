"""The cluster of a simulation: a CSV of nodes, a CSV of virtual clusters, or YAML.

- CSV, one row a node (or `count` nodes): gpus, and maybe gpu_model, cpus, memory_gb, rack, block,
  node_name. Nodes without GPUs are left out.
- CSV, one row a virtual cluster: vc, node_num, and maybe gpus (8 a node). Each is a cluster by
  itself, and the team of that name runs there alone.
- YAML: `nodes`, a list of {count, gpus, gpu_model, cpus, memory_gb, rack, block, pool}. It may have
  `topology`, a list of {name, parent}: then each node's rack is one of these, and its block is the
  outermost domain around that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from gangline_schemas.events.workers import GpuInfo, NodeInfo
from gangline_simulator.cluster_yaml import MOST_NODES, Group, read_groups
from gangline_simulator.errors import BadInputError
from gangline_simulator.rows import Row, Table
from gangline_simulator.trace import team_name

SYNONYMS: dict[str, tuple[str, ...]] = {
    "pool": ("vc", "pool", "virtual_cluster"),
    "nodes": ("node_num", "nodes", "num_nodes", "count"),
    "gpus": ("gpus", "gpu_capacity_num", "gpus_per_node", "num_gpus", "gpu_num", "gpu"),
    "gpu_model": ("gpu_model", "gpu_type", "model", "gpu_spec"),
    "cpus": ("cpus", "cpu_num", "num_cpus"),
    "memory_gb": ("memory_gb", "memory", "mem_gb"),
    "rack": ("rack",),
    "block": ("block",),
}
GPUS_PER_NODE = 8
_PLENTY = 1e6


@dataclass(frozen=True, slots=True)
class Pool:
    """Nodes that are scheduled together. `team`: only this team's jobs come here; "": all."""

    team: str
    nodes: tuple[NodeInfo, ...]

    @property
    def gpus(self) -> int:
        """GPUs of all its nodes."""
        return sum(len(node.gpus) for node in self.nodes)


@dataclass(frozen=True, slots=True)
class ClusterFile:
    """The content of a cluster file."""

    pools: tuple[Pool, ...]

    @property
    def gpus(self) -> int:
        """GPUs of all pools."""
        return sum(pool.gpus for pool in self.pools)

    def halved(self) -> ClusterFile:
        """Every pool with the first half of its nodes."""
        return ClusterFile(
            tuple(replace(pool, nodes=pool.nodes[: len(pool.nodes) // 2]) for pool in self.pools)
        )


def read_cluster(path: Path) -> ClusterFile:
    """Read a cluster file by its ending (.csv, .csv.gz, .yaml, .yml). Raises BadInputError."""
    if path.suffix in {".yaml", ".yml"}:
        return _pools(path, read_groups(path))
    if ".csv" not in path.suffixes:
        raise BadInputError(path, "is no cluster file; accepted: .csv, .csv.gz, .yaml, .yml")
    table = Table(path, SYNONYMS, {})
    per_pool = table.has("pool")
    if per_pool:
        table.require("nodes", way_out="one row a virtual cluster")
    else:
        table.require("gpus", way_out="one row a node; or vc and node_num, one row each")
    return _pools(path, [_group(row, per_pool=per_pool) for row in table.rows()])


def _group(row: Row, *, per_pool: bool) -> Group:
    count = row.count("nodes", default=1)
    if count > MOST_NODES:
        raise row.bad("nodes", f"{count} is too many; accepted: up to {MOST_NODES}")
    return Group(
        count=count,
        gpus=row.count("gpus", default=GPUS_PER_NODE if per_pool else None),
        gpu_model=row.text("gpu_model", "gpu"),
        cpus=row.number_of("cpus", default=0.0),
        memory_gb=row.number_of("memory_gb", default=0.0),
        rack=row.text("rack", "rack-0"),
        block=row.text("block", "block-0"),
        pool=row.text("pool"),
    )


def _pools(path: Path, groups: list[Group]) -> ClusterFile:
    found: dict[str, list[NodeInfo]] = {}
    for group in groups:
        team = team_name(group.pool) if group.pool else ""
        nodes = found.setdefault(team, [])
        for _ in range(group.count if group.gpus else 0):
            nodes.append(_node(f"n{len(nodes):05d}", group))
    pools = tuple(Pool(team, tuple(nodes)) for team, nodes in found.items())
    if not any(pool.nodes for pool in pools):
        raise BadInputError(path, "holds no node with GPUs")
    return ClusterFile(pools)


def _node(node_id: str, group: Group) -> NodeInfo:
    """A cluster file that says nothing of CPUs or memory has plenty of both."""
    return NodeInfo(
        node_id=node_id,
        incarnation="1",
        address=node_id,
        hostname=node_id,
        rack=group.rack,
        block=group.block,
        gpus=tuple(
            GpuInfo(index=index, model=group.gpu_model, memory_gb=0) for index in range(group.gpus)
        ),
        cpus=group.cpus or _PLENTY,
        memory_gb=group.memory_gb or _PLENTY,
        rendezvous_ports=(1,),
    )


def one_pool(nodes: int, gpus: int = GPUS_PER_NODE) -> ClusterFile:
    """A cluster of equal nodes, for tests and references."""
    return _pools(Path("cluster"), [Group(count=nodes, gpus=gpus)])


def teams_of(cluster: ClusterFile) -> Mapping[str, Pool]:
    """The pool of each team that has its own; empty when all share one."""
    return {pool.team: pool for pool in cluster.pools if pool.team}
