"""How the state of the registry is kept in a snapshot."""

from __future__ import annotations

from gangline_bus.state_json import DataclassCodec, unchanged
from gangline_registry.core.state import RegistryState

VERSION = 2
"""The format of the state: docs/guides/upgrades.md says when to count it up.

Version 1 knew no keys of checkpoints.
"""


def codec() -> DataclassCodec[RegistryState]:
    """Implements `SnapshotCodec[RegistryState]`."""
    return DataclassCodec(
        RegistryState,
        version=VERSION,
        converters={1: unchanged},
        left_out={"steps"},
        rebuild=_rebuild,
        derived=lambda state: sorted(f"{job} {sorted(own)}" for job, own in state.steps.items()),
    )


def _rebuild(state: RegistryState) -> None:
    """Derive what is left out of a snapshot, in place. Cost: the checkpoints."""
    for noted in state.checkpoints.values():
        one = noted.checkpoint
        state.steps[one.job_id] = (*state.steps.get(one.job_id, ()), one.step)


fingerprint = codec().fingerprint
"""sha256 in hex over the state: equal for a replay of the same log."""
