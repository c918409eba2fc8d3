"""How the state of the pipelines service is kept in a snapshot."""

from __future__ import annotations

from gangline_bus.state_json import DataclassCodec, unchanged
from gangline_pipelines.core.state import PipelineState

VERSION = 3
"""The format of the state: docs/guides/upgrades.md says when to count it up.

Version 1 knew no aliases, version 2 no attempts of outputs.
"""


def codec() -> DataclassCodec[PipelineState]:
    """Implements `SnapshotCodec[PipelineState]`."""
    return DataclassCodec(PipelineState, version=VERSION, converters={1: unchanged, 2: unchanged})


fingerprint = codec().fingerprint
"""sha256 in hex over the state: equal for a replay of the same log."""
