"""How the state of the studies service is kept in a snapshot."""

from __future__ import annotations

from gangline_bus.state_json import DataclassCodec
from gangline_studies.core.state import StudyState

VERSION = 2
"""The format of the state: docs/guides/upgrades.md says when to count it up.

Of version 1 nothing is converted: the log alone has `waits_since` of trials withdrawn before.
"""


def codec() -> DataclassCodec[StudyState]:
    """Implements `SnapshotCodec[StudyState]`."""
    return DataclassCodec(StudyState, version=VERSION)


fingerprint = codec().fingerprint
"""sha256 in hex over the state: equal for a replay of the same log."""
