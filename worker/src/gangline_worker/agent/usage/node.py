"""Counters of this node: CPU, disks, and all its networks."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import psutil

CountT = TypeVar("CountT")
_SYSTEM = Path("/sys")
_INFINIBAND = Path("/sys/class/infiniband")
_LANES = 4
"""InfiniBand's counters of data count 4 bytes each."""


@dataclass(frozen=True, slots=True)
class NodeTotals:
    """Counters since the machine started, and the space of the agent's disk, in bytes."""

    at_s: float
    """Since the machine started."""
    read: int
    written: int
    received: int
    sent: int
    disk_used: int
    disk_free: int


def node_totals(folder: Path, system: Path = _SYSTEM) -> NodeTotals:
    """The present counters; `folder` lies on the disk whose space counts.

    The network is that of all interfaces but loopback, and of InfiniBand's ports.
    """
    disks = _once(psutil.disk_io_counters(perdisk=True) or {}, system / "block")
    networks = _once(psutil.net_io_counters(pernic=True), system / "class" / "net")
    used = free = 0
    with contextlib.suppress(OSError):
        space = psutil.disk_usage(str(folder))
        used, free = space.used, space.free
    return NodeTotals(
        at_s=time.clock_gettime(time.CLOCK_BOOTTIME),
        read=sum(count.read_bytes for count in disks),
        written=sum(count.write_bytes for count in disks),
        received=sum(count.bytes_recv for count in networks) + _infiniband("port_rcv_data"),
        sent=sum(count.bytes_sent for count in networks) + _infiniband("port_xmit_data"),
        disk_used=used,
        disk_free=free,
    )


def _once(counts: Mapping[str, CountT], known: Path) -> list[CountT]:
    """Those of the hardware; of all whole devices but loopback where none is, as in a container.

    A volume, a RAID, a bond or a bridge counts once more what passes through the devices below it.
    """
    whole = {name: counts[name] for name in counts if name != "lo" and (known / name).exists()}
    hardware = [count for name, count in whole.items() if (known / name / "device").exists()]
    return hardware or list(whole.values())


def _infiniband(counter: str) -> int:
    found = 0
    for path in _INFINIBAND.glob(f"*/ports/*/counters/{counter}"):
        with contextlib.suppress(OSError, ValueError):
            found += int(path.read_text("ascii")) * _LANES
    return found
