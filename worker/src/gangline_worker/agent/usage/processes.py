"""The CPU time, memory and disk I/O of gangs on this node, by control group or by /proc."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gangline_worker.agent.decide.keys import GangKey
from gangline_worker.agent.host.sweep import Process, processes

_PAGE = os.sysconf("SC_PAGE_SIZE")
_DEEPEST = 64


@dataclass(frozen=True, slots=True)
class GangPlace:
    """A gang on this node: its team, GPUs, nodes, the pids of its ranks, its control group."""

    key: GangKey
    team: str
    gpus: tuple[int, ...] = ()
    """As NVML counts them."""
    nodes: int = 1
    """Of the whole gang."""
    ranks: tuple[int, ...] = ()
    group: Path | None = None


@dataclass(frozen=True, slots=True)
class GangTotals:
    """Sums over the processes of a gang. All but the memory count from the processes' starts."""

    cpu_s: float = 0.0
    memory_bytes: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    started_s: float = 0.0
    """When its first process started, in seconds since the machine started."""


def totals_of(gangs: Sequence[GangPlace]) -> dict[GangKey, GangTotals]:
    """Each gang's totals; without any gang nothing is read.

    CPU and memory are those of the control group where the gang has one. Otherwise memory is the
    sum of the processes' anonymous memory, so pages that they share since a fork count in each.
    """
    if not gangs:
        return {}
    found = list(processes())
    members = _members(found, gangs)
    return {gang.key: _totals(gang, members[gang.key]) for gang in gangs}


def _members(found: Sequence[Process], gangs: Sequence[GangPlace]) -> dict[GangKey, list[Process]]:
    """The processes of each gang: in the session of a rank, or started by one of it."""
    by_pid = {process.pid: process for process in found}
    owners = {pid: gang.key for gang in gangs for pid in gang.ranks}
    members: dict[GangKey, list[Process]] = {gang.key: [] for gang in gangs}
    for process in found:
        at: Process | None = process
        for _ in range(_DEEPEST):
            if at is None:
                break
            owner = owners.get(at.pid) or owners.get(at.session)
            if owner is not None:
                members[owner].append(process)
                break
            at = by_pid.get(at.parent)
    return members


def _totals(gang: GangPlace, members: Iterable[Process]) -> GangTotals:
    cpu_s, memory, read, written = 0.0, 0, 0, 0
    started_s = None
    for process in members:
        cpu_s += process.cpu_s
        started_s = min(process.started_s, started_s or process.started_s)
        with contextlib.suppress(OSError):  # it has ended
            resident, shared = _file(process.pid, "statm").split()[1:3]
            memory += (int(resident) - int(shared)) * _PAGE
        with contextlib.suppress(OSError):
            counters = _pairs(_file(process.pid, "io"))
            read += counters["read_bytes:"]
            written += counters["write_bytes:"]
    if gang.group is not None:
        with contextlib.suppress(OSError, KeyError):
            cpu_s = _pairs((gang.group / "cpu.stat").read_text())["usage_usec"] / 1e6
        with contextlib.suppress(OSError, KeyError):
            stat = _pairs((gang.group / "memory.stat").read_text())
            memory = stat["anon"] + stat["shmem"]
    return GangTotals(cpu_s, memory, read, written, started_s or 0.0)


def _file(pid: int, name: str) -> str:
    return Path(f"/proc/{pid}/{name}").read_text("ascii")


def _pairs(text: str) -> dict[str, int]:
    pairs = (line.split() for line in text.splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2}
