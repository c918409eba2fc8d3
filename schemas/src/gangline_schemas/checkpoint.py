"""The checkpoint format: what lies in the object store, under which keys.

```
<job prefix>/attempt-0002/step-0000000120/
    rank-00000.bin            raw tensor bytes of rank 0, one after the other
    rank-00000.json           its manifest: which tensor lies where, and the digest of the .bin
    rank-00001.bin ...
    COMMIT.json               put if absent by the checkpoint service: it counts from here on
```
Nothing here is ever unpickled: shards are raw bytes, everything else is JSON.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, JsonValue

from gangline_schemas.base import Identifier, Model, Timestamp
from gangline_schemas.events.workers import ObjectDigest
from gangline_schemas.job import JobSpec


class TensorSlice(Model):
    """A block of one tensor: `shape` elements from `start` of a tensor of `global_shape`.

    Its bytes, row-major and little-endian, lie at `byte_offset` of the rank's shard file.
    """

    name: str = Field(description="Dotted name, for example model.layers.0.attention.wq.weight.")
    dtype: str = Field(description="As torch names it, without the prefix: float32, bfloat16, ...")
    global_shape: tuple[int, ...]
    start: tuple[int, ...]
    shape: tuple[int, ...]
    byte_offset: int = Field(ge=0)
    size_bytes: int = Field(ge=0)


class RankManifest(Model):
    """What one rank wrote for one checkpoint."""

    format: Literal[1] = 1
    job_id: Identifier
    attempt: int = Field(ge=1)
    step: int = Field(ge=0)
    rank: int = Field(ge=0)
    world_size: int = Field(ge=1)
    shard: ObjectDigest = Field(description="The rank's .bin; its key is the file name.")
    tensors: tuple[TensorSlice, ...]
    state: dict[str, JsonValue] = Field(
        default_factory=dict,
        description="What is not a tensor: lr schedule, data position, RNG (hex), config hash.",
    )
    metrics: dict[str, float] = Field(default_factory=dict)


class CommitRecord(Model):
    """COMMIT.json: the complete list of the checkpoint's objects with their digests."""

    format: Literal[1] = 1
    job_id: Identifier
    attempt: int = Field(ge=1)
    step: int = Field(ge=0)
    world_size: int = Field(ge=1)
    manifests: tuple[ObjectDigest, ...] = Field(description="By rank.")
    shards: tuple[ObjectDigest, ...] = Field(description="By rank.")
    committed_at: Timestamp
    metrics: dict[str, float] = Field(default_factory=dict)


def job_prefix(team: str, job_id: str, spec: JobSpec) -> str:
    """Where all checkpoints of a job lie; always below the team's own prefix."""
    path = (spec.checkpoint.path or "").removeprefix("s3://").strip("/")
    return f"teams/{team}/{path}/{job_id}" if path else f"teams/{team}/checkpoints/{job_id}"


def checkpoint_prefix(prefix: str, attempt: int, step: int) -> str:
    """Where the objects of one checkpoint lie."""
    return f"{prefix}/attempt-{attempt:04d}/step-{step:010d}"


def commit_key(prefix: str, attempt: int, step: int) -> str:
    """Key of the commit record."""
    return f"{checkpoint_prefix(prefix, attempt, step)}/COMMIT.json"


def shard_name(rank: int) -> str:
    """File name of a rank's tensor bytes."""
    return f"rank-{rank:05d}.bin"


def manifest_name(rank: int) -> str:
    """File name of a rank's manifest."""
    return f"rank-{rank:05d}.json"


def code_key(team: str, digest: str) -> str:
    """Key of a packed working directory (sha256 of the tar.gz, in hex)."""
    return f"teams/{team}/code/{digest}.tar.gz"
