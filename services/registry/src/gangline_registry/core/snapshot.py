"""How the state of the registry is kept in a snapshot."""

from __future__ import annotations

from gangline_bus.state_json import DataclassCodec
from gangline_registry.core.state import RegistryState

VERSION = 1
"""The format of the state: docs/guides/upgrades.md says when to count it up."""


def codec() -> DataclassCodec[RegistryState]:
    """Implements `SnapshotCodec[RegistryState]`."""
    return DataclassCodec(RegistryState, version=VERSION)


fingerprint = codec().fingerprint
"""sha256 in hex over the state: equal for a replay of the same log."""
