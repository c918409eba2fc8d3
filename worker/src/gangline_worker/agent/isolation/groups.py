"""Control groups (version 2): what all processes of a gang on this node may take together.

The agent must own its group, as a systemd unit with `Delegate=cpu memory pids` does. Without `cpu`
jobs without GPUs may use more CPUs than they asked for. It moves into a
group below, since a group that shares out its controllers holds no processes itself, and makes one
beside that for each gang.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

from gangline_worker.agent.decide.keys import GangKey

AGENTS_OWN = "gangline-agent"
_NEEDED = frozenset({"memory", "pids"})
_PERIOD_US = 100_000
_LEAST_QUOTA_US = 1000
"""The kernel's least."""


@dataclass(frozen=True, slots=True)
class GangLimits:
    """The limits of all processes of a gang on this node; `cpus` None: no limit."""

    memory_bytes: int
    cpus: float | None = None


class Groups:
    """The groups of gangs below `base`. All methods from one thread at a time."""

    def __init__(self, base: Path) -> None:
        """Take `base` over. Raises OSError when it is not the agent's to share out."""
        self._base = base
        self._left: list[Path] = []
        offered = frozenset((base / "cgroup.controllers").read_text("ascii").split())
        if not offered >= _NEEDED:
            raise OSError("its control group has no controllers of memory and pids")
        own = base / AGENTS_OWN
        own.mkdir(exist_ok=True)
        (own / "cgroup.procs").write_text("0", "ascii")
        self._limits_cpus = self._share_out(cpus="cpu" in offered)

    def make(self, gang: GangKey, limits: GangLimits, processes: int) -> Path:
        """The file by which a process joins the gang's group. Raises OSError."""
        folder = self._folder(gang)
        folder.mkdir(exist_ok=True)
        (folder / "memory.max").write_text(str(limits.memory_bytes), "ascii")
        if limits.cpus is not None and self._limits_cpus:
            quota_us = max(_LEAST_QUOTA_US, round(limits.cpus * _PERIOD_US))
            (folder / "cpu.max").write_text(f"{quota_us} {_PERIOD_US}", "ascii")
        with contextlib.suppress(FileNotFoundError):  # a kernel without swap
            (folder / "memory.swap.max").write_text("0", "ascii")
        (folder / "pids.max").write_text(str(processes), "ascii")
        return folder / "cgroup.procs"

    def _share_out(self, *, cpus: bool) -> bool:
        """Let groups below have limits; whether also of CPUs, which is not always possible."""
        shared = self._base / "cgroup.subtree_control"
        if cpus:
            with contextlib.suppress(OSError):
                shared.write_text("+memory +pids +cpu", "ascii")
                return True
        shared.write_text("+memory +pids", "ascii")
        return False

    def remove(self, folder: Path) -> None:
        """End all that is in a gang's group; the group goes now, or with a later one."""
        if folder.is_dir():
            with contextlib.suppress(OSError):  # a kernel before 5.14: its sandbox ends them
                (folder / "cgroup.kill").write_text("1", "ascii")
            self._left.append(folder)
        for left in list(self._left):
            with contextlib.suppress(OSError):  # something is just ending there
                left.rmdir()
                self._left.remove(left)

    def _folder(self, gang: GangKey) -> Path:
        return self._base / f"gang-{gang.job_id}-{gang.attempt}"


def group_of(process: int | str) -> Path:
    """The group of a process, or of "self". Raises OSError without version 2."""
    mounts = (line.split() for line in Path("/proc/self/mounts").read_text().splitlines())
    mount = next((Path(fields[1]) for fields in mounts if fields[2] == "cgroup2"), None)
    entries = Path(f"/proc/{process}/cgroup").read_text().splitlines()
    groups = (line.split(":", 2) for line in entries)
    group = next((path for number, _, path in groups if number == "0"), None)
    if mount is None or group is None:
        raise OSError("there are no control groups of version 2")
    return mount / group.lstrip("/")


def base_group() -> Path:
    """The group that the agent was started in. Raises OSError without version 2."""
    found = group_of("self")
    return found.parent if found.name == AGENTS_OWN else found


def delegated_group() -> Path:
    """The same, if it was left to the agent: by systemd, or as a container's. Raises OSError."""
    base = base_group()
    given = base / "cgroup.type"  # which the root of all groups alone does not have
    with contextlib.suppress(OSError):
        if os.getxattr(base, "trusted.delegate") == b"1":
            return base
    if base.parent.joinpath("cgroup.procs").exists() or not given.exists():
        raise OSError(
            "its control group was not delegated to it (systemd: Delegate=cpu memory pids)"
        )
    return base
