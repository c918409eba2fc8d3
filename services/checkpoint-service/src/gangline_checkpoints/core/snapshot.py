"""How the checkpoint service's state is kept in a snapshot."""

from __future__ import annotations

from typing import Any

from gangline_bus.state_json import DataclassCodec
from gangline_checkpoints.core.model import Job
from gangline_checkpoints.core.state import CheckpointState

VERSION = 2
"""The format of the state: docs/guides/upgrades.md says when to count it up."""


def codec() -> DataclassCodec[CheckpointState]:
    """Implements `SnapshotCodec[CheckpointState]`."""
    return DataclassCodec(
        CheckpointState,
        version=VERSION,
        converters={1: _unchanged},
        mutable={"jobs": Job.copied},
    )


def _unchanged(name: str, value: Any) -> tuple[str, Any]:
    """Version 1 knew no registrations: there are then none."""
    return name, value


fingerprint = codec().fingerprint
"""sha256 in hex over the state: equal for a replay of the same log."""
