"""How the checkpoint service's state is kept in a snapshot."""

from __future__ import annotations

from gangline_bus.state_json import DataclassCodec, unchanged
from gangline_checkpoints.core.model import Job
from gangline_checkpoints.core.state import CheckpointState

VERSION = 2
"""The format of the state: docs/guides/upgrades.md says when to count it up.

Version 1 knew no registrations.
"""


def codec() -> DataclassCodec[CheckpointState]:
    """Implements `SnapshotCodec[CheckpointState]`."""
    return DataclassCodec(
        CheckpointState,
        version=VERSION,
        converters={1: unchanged},
        mutable={"jobs": Job.copied},
    )


fingerprint = codec().fingerprint
"""sha256 in hex over the state: equal for a replay of the same log."""
