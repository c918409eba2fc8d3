"""Counters of this node: CPU, disks, and all its networks."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

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


def node_totals(folder: Path) -> NodeTotals:
    """The present counters; `folder` lies on the disk whose space counts.

    The network is that of all interfaces but loopback, and of InfiniBand's ports.
    """
    disks = psutil.disk_io_counters()
    networks = psutil.net_io_counters(pernic=True)
    outer = [count for name, count in networks.items() if name != "lo"]
    used = free = 0
    with contextlib.suppress(OSError):
        space = psutil.disk_usage(str(folder))
        used, free = space.used, space.free
    return NodeTotals(
        at_s=time.clock_gettime(time.CLOCK_BOOTTIME),
        read=disks.read_bytes if disks is not None else 0,
        written=disks.write_bytes if disks is not None else 0,
        received=sum(count.bytes_recv for count in outer) + _infiniband("port_rcv_data"),
        sent=sum(count.bytes_sent for count in outer) + _infiniband("port_xmit_data"),
        disk_used=used,
        disk_free=free,
    )


def _infiniband(counter: str) -> int:
    found = 0
    for path in _INFINIBAND.glob(f"*/ports/*/counters/{counter}"):
        with contextlib.suppress(OSError, ValueError):
            found += int(path.read_text("ascii")) * _LANES
    return found
