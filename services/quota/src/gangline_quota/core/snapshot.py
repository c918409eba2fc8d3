"""How quota's state is kept in a snapshot, and its canonical form for golden logs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gangline_bus.canonical import Fields, canonical_json
from gangline_bus.state_json import DataclassCodec, unchanged
from gangline_quota.core.state import State
from gangline_quota.core.taken import Taken, note

VERSION = 3
"""The format of the state: docs/guides/upgrades.md says when to count it up.

Version 1 knew no jobs without GPUs.
"""


class _Digests:
    """Version 2 kept whole ids: each line of them becomes the texts that it made longer."""

    def __init__(self) -> None:
        self._taken: Taken = {}

    def __call__(self, name: str, value: Any) -> tuple[str, Any]:
        if name != "taken":
            return name, value
        changed = dict.fromkeys(note(self._taken, job_id) for job_id, _ in value)
        return name, [(first, self._taken[first]) for first in changed]


def codec(initial: Callable[[], State] = State) -> DataclassCodec[State]:
    """Implements `SnapshotCodec[State]`; all of the state is facts."""
    return DataclassCodec(initial, version=VERSION, converters={1: unchanged, 2: _Digests()})


def canonical(state: State, known: Fields | None = None) -> bytes:
    """The facts, as later versions with more fields write them too; see `canonical_json`."""
    return canonical_json(state, known=known)


fingerprint = codec().fingerprint
"""sha256 in hex over the state: equal for a replay of the same log."""
