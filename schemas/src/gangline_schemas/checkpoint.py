"""The checkpoint format: what lies in the object store, under which keys.

```
<job prefix>/attempt-0002/step-0000000120/
    rank-00000.bin            raw tensor bytes of rank 0, one after the other
    rank-00000.json           its manifest: which tensor lies where, and the digest of the .bin
    rank-00001.bin ...
    COMMIT.json               put if absent by the checkpoint service: it counts from here on
```

In format 2 the rank's bytes lie in chunks. Its own .bin has the chunks that changed. The others lie
in the files that the same rank wrote in earlier steps of the attempt.

Nothing here is ever unpickled: shards are raw bytes, everything else is JSON.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from gangline_schemas.base import Identifier, Model, Timestamp
from gangline_schemas.events.workers import ObjectDigest
from gangline_schemas.job import JobSpec
from gangline_schemas.limits import (
    MAX_GANG_GPUS,
    Attempt,
    Bytes,
    Count,
    FreeState,
    Metrics,
    ObjectBytes,
    Rank,
    Step,
    WorldSize,
)

ITEM_BYTES: Mapping[str, int] = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "complex128": 16,
    "complex64": 8,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint64": 8,
    "uint32": 4,
    "uint16": 2,
    "uint8": 1,
    "bool": 1,
}
"""Bytes of an element of each dtype; tensors of others are in no checkpoint."""
EACH_COPY_BYTES = 64 * 1024
"""Of a block that several ranks hold alike, each writes it whole up to this size; a part above."""
MAX_MANIFEST_BYTES = 16 * 1024 * 1024
"""A larger one is not read, so its checkpoint is never committed."""
MAX_MANIFESTS_BYTES = 1024 * 1024 * 1024
"""Of all ranks together; a checkpoint with more is never committed. A slice takes about 250."""

NAME_CHARS = 1024
"""Of a tensor."""
MAX_PARTS = 1_000_000
"""Slices, or chunks, of one rank: as many as a manifest of that size can name."""
Dimensions = Annotated[tuple[Count, ...], Field(max_length=64)]
"""One number for each dimension: torch has 64 at most."""

TensorName = Annotated[str, Field(max_length=NAME_CHARS)]
AlikeDigest = Annotated[str, Field(pattern=r"^(xxh3|sum):[0-9a-f]{16}$")]

SliceKey = tuple[str, str, tuple[int, ...], tuple[int, ...], tuple[int, ...]]
"""Name, dtype, global shape, start and shape of a slice."""


class TensorSlice(Model):
    """A block of one tensor: `shape` elements from `start` of a tensor of `global_shape`.

    Its bytes, row-major and little-endian, lie at `byte_offset` of the rank's bytes: of its shard
    file (format 1), or of its chunks one after the other (format 2).
    """

    name: TensorName = Field(
        description="Dotted name, for example model.layers.0.attention.wq.weight."
    )
    dtype: str = Field(
        max_length=32, description="As torch names it, without the prefix: float32, bfloat16, ..."
    )
    global_shape: Dimensions
    start: Dimensions
    shape: Dimensions
    byte_offset: Bytes
    size_bytes: ObjectBytes

    @property
    def key(self) -> SliceKey:
        """Equal for copies of one slice, wherever they lie."""
        return self.name, self.dtype, self.global_shape, self.start, self.shape

    @property
    def is_whole(self) -> bool:
        """Whether it is all of its tensor."""
        return self.shape == self.global_shape


class Chunk(Model):
    """A run of a rank's bytes, and where they lie: never in another place than first written."""

    size_bytes: ObjectBytes = Field(ge=1)
    xxh3: str = Field(pattern=r"^[0-9a-f]{32}$", description="xxh3-128 of the bytes, in hex.")
    step: Step = Field(description="Of the same attempt: they lie in this rank's .bin there.")
    byte_offset: Bytes = Field(description="Where in that .bin they begin.")


class RankManifest(Model):
    """One rank's part of one checkpoint."""

    format: Literal[1, 2] = 1
    job_id: Identifier
    attempt: Attempt
    step: Step
    rank: Rank
    world_size: WorldSize
    shard: ObjectDigest = Field(description="The rank's .bin; its key is the file name.")
    tensors: tuple[TensorSlice, ...] = Field(max_length=MAX_PARTS)
    chunks: tuple[Chunk, ...] | None = Field(
        default=None,
        max_length=MAX_PARTS,
        description="Format 2: the rank's bytes, in order; those of its own step fill its .bin.",
    )
    state: FreeState = Field(
        default_factory=dict,
        description="All that is not a tensor: lr schedule, data position, RNG (hex), config hash.",
    )
    metrics: Metrics = Field(default_factory=dict)
    alike: dict[TensorName, AlikeDigest] = Field(
        default_factory=dict,
        max_length=MAX_PARTS,
        description="A digest of each tensor that all ranks must hold alike, of all its bytes.",
    )
    alone: bool = Field(
        default=False, description="All that the rank held is in its own bytes, so needs no others."
    )

    @model_validator(mode="after")
    def _chunks_are_format_2(self) -> Self:
        if (self.format == 2) != (self.chunks is not None):
            raise ValueError("a manifest has chunks if and only if its format is 2")
        return self

    @property
    def whole_bytes(self) -> int:
        """How many bytes the rank's tensors take, wherever they lie."""
        if self.chunks is None:
            return self.shard.size_bytes
        return sum(chunk.size_bytes for chunk in self.chunks)

    @property
    def refers(self) -> tuple[int, ...]:
        """The earlier steps in whose files some of its chunks lie."""
        return tuple(sorted({chunk.step for chunk in self.chunks or ()} - {self.step}))


class CommitRecord(Model):
    """COMMIT.json: the complete list of the checkpoint's objects with their digests."""

    format: Literal[1, 2] = 1
    job_id: Identifier
    attempt: Attempt
    step: Step
    world_size: WorldSize
    manifests: tuple[ObjectDigest, ...] = Field(max_length=MAX_GANG_GPUS, description="By rank.")
    shards: tuple[ObjectDigest, ...] = Field(max_length=MAX_GANG_GPUS, description="By rank.")
    referred: tuple[ObjectDigest, ...] | None = Field(
        default=None,
        max_length=1000 * MAX_GANG_GPUS,
        description="Format 2: shards of earlier steps of the attempt that hold chunks of it.",
    )
    committed_at: Timestamp
    metrics: Metrics = Field(default_factory=dict)


_RANKS_NAMED = 8
_OBJECT = re.compile(r"attempt-(\d{4,10})/step-(\d{10,19})/(COMMIT|rank-\d{5,})\.(json|bin)")


class Alike:
    """Whether ranks hold alike what all of them are to hold. Threads may `add` at one time.

    Digests of one kind are compared: those of GPUs and of main memory are made in other ways.
    """

    def __init__(self) -> None:
        self._ranks: dict[tuple[str, str], dict[str, list[int]]] = {}
        self._added: list[int] = []
        self._whole: set[str] = set()

    def add(self, manifest: RankManifest) -> None:
        """Take what a rank says."""
        self._added.append(manifest.rank)
        self._whole.update([each.name for each in manifest.tensors if each.is_whole])
        for name, digest in manifest.alike.items():
            of = self._ranks.setdefault((name, digest[:3]), {})
            of.setdefault(digest, []).append(manifest.rank)

    def problem(self) -> str | None:
        """Which tensor the ranks do not hold alike, and which ranks; None if they all do.

        Each writes a part of a large tensor, so one that some ranks do not hold is not whole.
        """
        differ = {name: found for (name, _), found in self._ranks.items() if len(found) > 1}
        if not differ:
            return self._parts_missing()
        name = min(differ)
        most, *others = sorted(map(sorted, differ[name].values()), key=lambda of: (-len(of), of))
        named = _some(rank for found in others for rank in found)
        more = f" (and {len(differ) - 1} more)" if len(differ) > 1 else ""
        return (
            f"tensor {name}{more}: the ranks hold different values, {named} not those of rank "
            f"{most[0]}; give what is a rank's own as save(..., per_rank={{...}}), or make it "
            "alike before the save"
        )

    def _parts_missing(self) -> str | None:
        held: dict[str, list[int]] = {}
        for (name, _), found in self._ranks.items():
            if name not in self._whole:
                held.setdefault(name, []).extend(*found.values())
        partial = {name: ranks for name, ranks in held.items() if len(ranks) < len(self._added)}
        if not partial:
            return None
        name = min(partial)
        more = f" (and {len(partial) - 1} more)" if len(partial) > 1 else ""
        return (
            f"tensor {name}{more}: of {len(self._added)} ranks only {_some(partial[name])} hold "
            "it, so parts of it are missing; give what is a rank's own as "
            "save(..., per_rank={...})"
        )


def _some(ranks: Iterable[int]) -> str:
    found = sorted(ranks)
    return ", ".join(map(str, found[:_RANKS_NAMED])) + ", ..." * (len(found) > _RANKS_NAMED)


def job_prefix(team: str, job_id: str, spec: JobSpec) -> str:
    """Where all checkpoints of a job lie; always below the team's own prefix."""
    path = (spec.checkpoint.path or "").removeprefix("s3://").strip("/")
    return f"teams/{team}/{path}/{job_id}" if path else f"teams/{team}/checkpoints/{job_id}"


def team_of(prefix: str) -> str:
    """The team below whose own prefix a job's checkpoints lie."""
    return prefix.split("/")[1]


def checkpoint_prefix(prefix: str, attempt: int, step: int) -> str:
    """Where the objects of one checkpoint lie."""
    return f"{prefix}/attempt-{attempt:04d}/{step_folder(step)}"


def step_of_key(prefix: str, key: str) -> tuple[int, int] | None:
    """The attempt and step of an object of a checkpoint; None: it is another object."""
    found = _OBJECT.fullmatch(key.removeprefix(f"{prefix}/"))
    if found is None:
        return None
    attempt, step = int(found[1]), int(found[2])
    return (
        (attempt, step) if key.startswith(f"{checkpoint_prefix(prefix, attempt, step)}/") else None
    )


def step_folder(step: int) -> str:
    """Name of a step's folder below its attempt's."""
    return f"step-{step:010d}"


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
