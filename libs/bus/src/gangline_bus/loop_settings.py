"""The settings of a decider loop."""

from __future__ import annotations

from dataclasses import dataclass

from gangline_schemas.features import RELEASE


@dataclass(frozen=True, slots=True)
class LoopSettings:
    """How the loop batches. `instance` is the CloudEvents source's last part.

    `release` is in each decision's headers: the error of an earlier version names it (fold.py).
    """

    shard: int = 0
    batch: int = 500
    cycle_s: float = 2.0
    tick_interval_s: float = 1.0
    offsets_after_s: float = 1.0
    offsets_refresh_s: float = 3600.0
    dlq_limit: int = 10_000
    instance: str = "0"
    release: str = RELEASE
