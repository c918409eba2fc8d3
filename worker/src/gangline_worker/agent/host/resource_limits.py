"""The kernel's limits for the agent and all that it starts: descriptors, and locked memory.

A service manager often leaves a soft limit of 1,024 descriptors, which is less than one store of a
large gang needs. NCCL registers memory with InfiniBand, which counts as locked. Children inherit
what is raised here: the store server, the zygote, each rank.
"""

from __future__ import annotations

import resource
from dataclasses import dataclass
from pathlib import Path

_INFINIBAND = Path("/sys/class/infiniband")
_MIB = 1024**2


@dataclass(frozen=True, slots=True)
class ResourceLimits:
    """The limits of this process; `locked_bytes` None: no limit."""

    descriptors: int
    locked_bytes: int | None

    @property
    def lockable(self) -> str:
        """The memory that may be locked, as a phrase."""
        locked = "all" if self.locked_bytes is None else f"{self.locked_bytes / _MIB:.4g} MB"
        return f"{locked} memory to lock"

    @property
    def summary(self) -> str:
        """One clause."""
        return f"{self.descriptors} descriptors a process, and {self.lockable}"


def raise_limits() -> ResourceLimits:
    """Take all descriptors and all locked memory that the system grants; what holds then."""
    _raise(resource.RLIMIT_NOFILE, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    _raise(resource.RLIMIT_MEMLOCK, resource.RLIM_INFINITY)
    return current()


def current() -> ResourceLimits:
    """The present limits of this process."""
    locked = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    return ResourceLimits(
        descriptors=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        locked_bytes=None if locked == resource.RLIM_INFINITY else locked,
    )


def unfit_limits(limits: ResourceLimits, devices: Path = _INFINIBAND) -> tuple[str, ...]:
    """Clauses about what ranks cannot work with; () when nothing is wrong."""
    if limits.locked_bytes is None or not devices.is_dir() or not any(devices.iterdir()):
        return ()
    found = f"its ranks may lock only {limits.locked_bytes / _MIB:.4g} MB of memory"
    return (f"{found}, and NCCL over InfiniBand needs all: set LimitMEMLOCK=infinity for it",)


def _raise(limit: int, wanted: int) -> None:
    """Both limits, which only the superuser may; else the soft one up to the hard one."""
    hard = resource.getrlimit(limit)[1]
    try:
        resource.setrlimit(limit, (wanted, wanted))
    except (OSError, ValueError):
        resource.setrlimit(limit, (hard, hard))
