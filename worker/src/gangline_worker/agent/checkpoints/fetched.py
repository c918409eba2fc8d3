"""The tiers that files of checkpoints came from when gangs started: counted and logged."""

from __future__ import annotations

from collections import Counter
from enum import StrEnum

from opentelemetry import metrics

_METER = metrics.get_meter("gangline.agent")
_FILES = _METER.create_counter(
    "gangline.checkpoint.fetched.files", description="Files of checkpoints to start from, by tier."
)
_BYTES = _METER.create_counter(
    "gangline.checkpoint.fetched", unit="By", description="The same files' bytes, by tier."
)


class Tier(StrEnum):
    """Where a copy of a checkpoint's file is, the nearest first."""

    LOCAL = "local"
    PEER = "peer"
    STORE = "store"


class Fetched:
    """The files that one fetch of a checkpoint brought, by tier; also in the process's metrics."""

    def __init__(self) -> None:
        self._files: Counter[Tier] = Counter()
        self._bytes: Counter[Tier] = Counter()

    def add(self, tier: Tier, size_bytes: int) -> None:
        """A file is here, and its copy of that tier is what was committed."""
        self._files[tier] += 1
        self._bytes[tier] += size_bytes
        _FILES.add(1, {"tier": tier.value})
        _BYTES.add(size_bytes, {"tier": tier.value})

    def counts(self) -> dict[str, int]:
        """For a line of the log: files and bytes of each tier."""
        return {f"{tier}_files": self._files[tier] for tier in Tier} | {
            f"{tier}_bytes": self._bytes[tier] for tier in Tier
        }
