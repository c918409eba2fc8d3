"""Whether a rank's part fits the attempt that it names. The service computes the keys itself.

Deletions later use these same keys: no message can point a deletion elsewhere.
"""

from __future__ import annotations

from gangline_schemas.checkpoint import checkpoint_prefix, manifest_name, shard_name
from gangline_schemas.events.workers import CheckpointShardWritten


def refusal(shard: CheckpointShardWritten, *, prefix: str, world_size: int) -> str | None:
    """Why this part cannot belong to a checkpoint of the attempt; None when it can."""
    if shard.world_size != world_size or shard.rank >= world_size:
        return (
            f"rank {shard.rank} of {shard.world_size} does not fit "
            f"the attempt's world size of {world_size}"
        )
    folder = checkpoint_prefix(prefix, shard.attempt, shard.step)
    if shard.manifest.key != f"{folder}/{manifest_name(shard.rank)}":
        return f"the manifest of rank {shard.rank} lies at another key than its place"
    if [item.key for item in shard.shards] != [f"{folder}/{shard_name(shard.rank)}"]:
        return f"the shard of rank {shard.rank} lies at another key than its place"
    return None
