"""How the state of the registry is kept in a snapshot."""

from __future__ import annotations

from typing import Any

from gangline_bus.state_json import DataclassCodec
from gangline_registry.core.state import RegistryState

VERSION = 2
"""The format of the state: docs/guides/upgrades.md says when to count it up."""


def codec() -> DataclassCodec[RegistryState]:
    """Implements `SnapshotCodec[RegistryState]`."""
    return DataclassCodec(RegistryState, version=VERSION, converters={1: _unchanged})


def _unchanged(name: str, value: Any) -> tuple[str, Any]:
    """Version 1 knew no keys of checkpoints: there are then none."""
    return name, value


fingerprint = codec().fingerprint
"""sha256 in hex over the state: equal for a replay of the same log."""
