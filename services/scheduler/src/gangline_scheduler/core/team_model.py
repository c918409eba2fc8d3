"""The values that the scheduler keeps of a team: its limits, its use, and how long its jobs ran."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from gangline_schemas.team_limits import TeamConfig


@dataclass(frozen=True, slots=True)
class Team:
    """A team's limits. `excused`: GPUs it had above its ceiling when that was lowered."""

    config: TeamConfig
    excused: int = 0

    @property
    def parent(self) -> str | None:
        """The team above it in the tree."""
        return self.config.parent


@dataclass(frozen=True, slots=True)
class Usage:
    """The present and decayed past use of a team and those below it: GPUs, CPUs, GB.

    `past` is weighed: use a half-life before `at` counts half. It is in units times
    seconds, as of `at`; `rate` is used since then.
    """

    rate: tuple[float, float, float] = (0.0, 0.0, 0.0)
    past: tuple[float, float, float] = (0.0, 0.0, 0.0)
    at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Runtime:
    """How long a job that succeeded had GPUs, and what its spec had said (None: nothing)."""

    ran_s: float
    expected_s: float | None
