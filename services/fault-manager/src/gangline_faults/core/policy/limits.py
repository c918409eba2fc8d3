"""How much failing is too much."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FaultLimits:
    """Limits for all jobs and nodes; 0 turns each of the first three off.

    A restart comes back after `refill_commits` commits; `idle_max` restarts in a row without
    progress end a job. A node is distrusted after `distrust_after` failures that name it within
    `distrust_window_s`, if at most `distrust_share` of all nodes are distrusted in that time.
    `stragglers_blamed`: a straggler counts as a failure that names its node.
    """

    refill_commits: int = 6
    idle_max: int = 5
    distrust_after: int = 5
    distrust_window_s: float = 86_400.0
    distrust_share: float = 0.1
    stragglers_blamed: bool = False
