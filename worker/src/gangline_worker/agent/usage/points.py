"""Metrics of gangs and of the node from two readings. Pure.

Names are MLflow's where they mean the same: `system/NODE/...`. Megabytes are 10^6 bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from gangline_schemas.events.heartbeats import GpuUse, NodeUse
from gangline_schemas.system_metrics import PREFIX
from gangline_worker.agent.decide.keys import GangKey

from .gpus import GpuReading
from .node import NodeTotals
from .processes import GangPlace, GangTotals

_MB = 1e6
_GIB = 1024**3
WIDE_NODES = 8
"""A gang on more nodes has the means of its GPUs alone: so many metrics a run stay bounded."""
Values = Iterator[tuple[str, float]]


@dataclass(frozen=True, slots=True)
class Reading:
    """Totals and GPUs as read at one time."""

    node: NodeTotals
    gangs: Mapping[GangKey, GangTotals]
    gpus: tuple[GpuReading, ...] = ()


@dataclass(frozen=True, slots=True)
class Capacity:
    """The name of a node and its CPUs."""

    node_id: str
    cpus: float


def gang_points(place: GangPlace, before: Reading | None, now: Reading, has: Capacity) -> Values:
    """Each metric's name and value. The first reading of a gang counts from its start.

    Network and disk space are the node's: the kernel counts these for no process.
    """
    prefix = f"{PREFIX}{has.node_id}/"
    totals = now.gangs.get(place.key)
    if totals is not None:
        earlier = before.gangs.get(place.key) if before is not None else None
        for name, value in _of_processes(totals, earlier, before, now, has):
            yield prefix + name, value
    for name, value in _of_node(before, now):
        yield prefix + name, value
    own = [gpu for gpu in now.gpus if gpu.index in place.gpus]
    for name, value in _of_gpus(own, each=place.nodes <= WIDE_NODES):
        yield prefix + name, value


def _of_processes(
    totals: GangTotals,
    earlier: GangTotals | None,
    before: Reading | None,
    now: Reading,
    has: Capacity,
) -> Values:
    first = earlier or GangTotals()
    since_s = before.node.at_s if before is not None and earlier is not None else totals.started_s
    took_s = now.node.at_s - since_s
    yield "system_memory_usage_megabytes", totals.memory_bytes / _MB
    if took_s <= 0:
        return
    cpu = 100 * (totals.cpu_s - first.cpu_s) / took_s / has.cpus
    yield "cpu_utilization_percentage", min(100.0, max(0.0, cpu))
    read = (totals.read_bytes - first.read_bytes) / took_s
    written = (totals.written_bytes - first.written_bytes) / took_s
    yield "disk_read_megabytes_per_second", max(0.0, read) / _MB
    yield "disk_write_megabytes_per_second", max(0.0, written) / _MB


def _of_node(before: Reading | None, now: Reading) -> Values:
    yield "disk_available_megabytes", now.node.disk_free / _MB
    if (percent := _used_percent(now.node)) is not None:
        yield "disk_usage_percentage", percent
    rates = _rates(before, now)
    if rates is not None:
        yield "network_receive_megabytes_per_second", rates[2]
        yield "network_transmit_megabytes_per_second", rates[3]


def _of_gpus(gpus: Sequence[GpuReading], *, each: bool) -> Values:
    """The means over these, and if wanted each one's values."""
    kinds: tuple[tuple[str, Callable[[GpuReading], float | None]], ...] = (
        ("utilization_percentage", lambda gpu: gpu.utilization),
        ("sm_activity_percentage", lambda gpu: gpu.sm_activity),
        ("memory_usage_percentage", _memory_percent),
        ("power_usage_watts", lambda gpu: gpu.power_w),
    )
    for kind, read in kinds:
        found = [(gpu.index, value) for gpu in gpus if (value := read(gpu)) is not None]
        if found:
            yield f"gpu_{kind}", sum(value for _, value in found) / len(found)
        for index, value in found if each else ():
            yield f"gpu_{index}_{kind}", value


def node_use(before: Reading | None, now: Reading, at: datetime) -> NodeUse:
    """The node's part of a heartbeat."""
    rates = _rates(before, now) or (None, None, None, None)
    return NodeUse(
        read_at=at,
        disk_read_mb_s=rates[0],
        disk_write_mb_s=rates[1],
        network_receive_mb_s=rates[2],
        network_send_mb_s=rates[3],
        disk_free_gb=now.node.disk_free / _GIB,
        disk_used_percent=_used_percent(now.node),
        gpus=tuple(
            GpuUse(index=gpu.index, power_w=gpu.power_w, sm_percent=gpu.sm_activity)
            for gpu in now.gpus
        ),
    )


def _rates(before: Reading | None, now: Reading) -> tuple[float, float, float, float] | None:
    """Megabytes a second: read from disks, written, received, sent."""
    if before is None or now.node.at_s <= before.node.at_s:
        return None
    old, new = before.node, now.node
    scale = 1 / _MB / (new.at_s - old.at_s)
    return (
        max(0, new.read - old.read) * scale,
        max(0, new.written - old.written) * scale,
        max(0, new.received - old.received) * scale,
        max(0, new.sent - old.sent) * scale,
    )


def _used_percent(node: NodeTotals) -> float | None:
    space = node.disk_used + node.disk_free
    return 100 * node.disk_used / space if space else None


def _memory_percent(gpu: GpuReading) -> float | None:
    if gpu.memory_used is None or not gpu.memory_total:
        return None
    return 100 * gpu.memory_used / gpu.memory_total
