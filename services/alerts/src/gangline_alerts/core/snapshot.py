"""How the state of the alerts service is kept in a snapshot."""

from __future__ import annotations

from gangline_alerts.core.state import AlertState
from gangline_bus.state_json import DataclassCodec

VERSION = 1
"""The format of the state: docs/guides/upgrades.md says when to count it up."""


def codec() -> DataclassCodec[AlertState]:
    """Implements `SnapshotCodec[AlertState]`."""
    return DataclassCodec(AlertState, version=VERSION)


fingerprint = codec().fingerprint
"""sha256 in hex over the state: equal for a replay of the same log."""
