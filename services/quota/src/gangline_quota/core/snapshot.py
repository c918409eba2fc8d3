"""How quota's state is kept in a snapshot, and its canonical form for golden logs."""

from __future__ import annotations

from collections.abc import Callable

from gangline_bus.canonical import Fields, canonical_json
from gangline_bus.state_json import DataclassCodec
from gangline_quota.core.state import State

VERSION = 3
"""The format of the state: docs/guides/upgrades.md says when to count it up."""


def codec(initial: Callable[[], State] = State) -> DataclassCodec[State]:
    """Implements `SnapshotCodec[State]`; all of the state is facts."""
    return DataclassCodec(initial, version=VERSION)


def canonical(state: State, known: Fields | None = None) -> bytes:
    """The facts, as later versions with more fields write them too; see `canonical_json`."""
    return canonical_json(state, known=known)


fingerprint = codec().fingerprint
"""sha256 in hex over the state: equal for a replay of the same log."""
