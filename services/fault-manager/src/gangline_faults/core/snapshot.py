"""How the fault manager's state is kept in a snapshot."""

from __future__ import annotations

from collections.abc import Iterable

from gangline_bus.state_json import DataclassCodec, unchanged
from gangline_faults.core.state import FaultState, place

VERSION = 2
"""The format of the state: docs/guides/upgrades.md says when to count it up.

Version 1 did not know whether other processes have the memory of a GPU.
"""


def codec() -> DataclassCodec[FaultState]:
    """Implements `SnapshotCodec[FaultState]`."""
    return DataclassCodec(
        FaultState,
        version=VERSION,
        converters={1: unchanged},
        left_out=("placed",),
        rebuild=_rebuild,
        derived=_derived,
    )


def _rebuild(state: FaultState) -> None:
    for job_id in state.gangs:
        place(state, job_id)


def _derived(state: FaultState) -> Iterable[str]:
    """Where the gangs are. A change of this index that folding forgets would show here."""
    for node_id in sorted(state.placed):
        yield f"{node_id} {' '.join(sorted(state.placed[node_id]))}"


fingerprint = codec().fingerprint
"""sha256 in hex over the state: equal for a replay of the same log."""
