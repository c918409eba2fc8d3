"""How the state of the pipelines service is kept in a snapshot."""

from __future__ import annotations

from gangline_bus.state_json import DataclassCodec
from gangline_pipelines.core.state import PipelineState

VERSION = 1
"""The format of the state: docs/guides/upgrades.md says when to count it up."""


def codec() -> DataclassCodec[PipelineState]:
    """Implements `SnapshotCodec[PipelineState]`."""
    return DataclassCodec(PipelineState, version=VERSION)


fingerprint = codec().fingerprint
"""sha256 in hex over the state: equal for a replay of the same log."""
