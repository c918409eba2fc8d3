"""How the checkpoint service's state is kept in a snapshot."""

from __future__ import annotations

from dataclasses import replace

from gangline_bus.state_json import DataclassCodec
from gangline_checkpoints.model import Job
from gangline_checkpoints.state import CheckpointState


def codec() -> DataclassCodec[CheckpointState]:
    """Implements `SnapshotCodec[CheckpointState]`.

    `effects` are kept too: which shards a verification reads was fixed when it was asked for.
    """
    return DataclassCodec(CheckpointState, mutable={"jobs": _copy, "effects": dict})


def _copy(job: Job) -> Job:
    """Kept checkpoints are replaced and never changed; open ones grow."""
    opened = {
        step_id: replace(known, shards=dict(known.shards)) for step_id, known in job.open.items()
    }
    return replace(
        job,
        open=opened,
        kept=list(job.kept),
        deleting=dict(job.deleting),
        closed=dict(job.closed),
        on_nodes=dict(job.on_nodes),
    )
