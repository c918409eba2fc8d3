"""Reports a block that is left out: a line for people, and the job is flagged for review."""

from __future__ import annotations

import sys

from gangline_schemas.rank_protocol import DataDamaged
from gangline_worker.data.blocks import LeftOut
from gangline_worker.reporting import reporter


def flag(found: LeftOut) -> None:
    """Write it to stderr and tell the agent, if there is one; never waits."""
    sys.stderr.write(f"{found}\n")
    sys.stderr.flush()
    message = DataDamaged(
        snapshot=found.snapshot, shard=found.shard, block=found.block, reason=found.reason[:1000]
    )
    reporter().data_damaged(message)
