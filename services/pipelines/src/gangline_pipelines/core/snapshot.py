"""How the state of the pipelines service is kept in a snapshot."""

from __future__ import annotations

from typing import Any

from gangline_bus.state_json import DataclassCodec
from gangline_pipelines.core.state import PipelineState

VERSION = 3
"""The format of the state: docs/guides/upgrades.md says when to count it up."""


def codec() -> DataclassCodec[PipelineState]:
    """Implements `SnapshotCodec[PipelineState]`."""
    return DataclassCodec(PipelineState, version=VERSION, converters={1: _unchanged, 2: _unchanged})


def _unchanged(name: str, value: Any) -> tuple[str, Any]:
    """Version 1 knew no aliases: there are then none. Version 2 knew no attempts of outputs."""
    return name, value


fingerprint = codec().fingerprint
"""sha256 in hex over the state: equal for a replay of the same log."""
