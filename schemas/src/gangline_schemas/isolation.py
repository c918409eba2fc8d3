"""How well a node keeps the ranks of one team from those of another."""

from __future__ import annotations

from enum import StrEnum


class Isolation(StrEnum):
    """The levels, weakest first; each has what those before it have."""

    NONE = "none"
    PROCESS = "process"
    """No new privileges, no core dumps, an environment of its own."""
    USER = "user"
    """A user of its own for each team, with limits on processes and memory, and private folders."""
    NAMESPACES = "namespaces"
    """Mount, pid and ipc namespaces of its own for each gang."""
    LIMITS = "limits"
    """A control group for each gang: limits for all of its processes together."""

    @property
    def strength(self) -> int:
        """Higher is stronger."""
        return list(Isolation).index(self)
