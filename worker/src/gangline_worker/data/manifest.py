"""The manifest of a snapshot: which shards there are, and the checksum of each block.

A snapshot is a folder, or a prefix of a store, and never changes. One of tokens:

- `manifest.json`: this file;
- `shard-NNNNNN.tok`: tokens, little-endian, one after another. All shards hold `shard_tokens` but
  the last one, so the place of a token is one division away;
- `shard-NNNNNN.idx`: where the documents that begin in the shard begin: token offsets in it,
  uint64, little-endian, rising.

A document may continue in the next shard. A snapshot of tar files (tar_index.py) has beside each
`NAME.tar` a `NAME.tar.idx` with the offsets in bytes at which its samples begin.

The name of a snapshot, `corpus@xxh3-...`, is the digest of
all that the manifest says but itself: the same data by the same settings have the same name.
"""

from __future__ import annotations

import contextlib
import json
from abc import abstractmethod
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from pydantic import Field, StringConstraints, ValidationError, model_validator

from gangline_schemas.base import Model, field_errors
from gangline_storage import digest_bytes
from gangline_worker.data.errors import DataError

MANIFEST_FILE = "manifest.json"
TAR_SUFFIX = ".tar"
OFFSET_TYPE = np.dtype("<u8")  # of one document's offset in an index

XXH3_PATTERN = r"^[0-9a-f]{32}$"
Xxh3 = Annotated[str, StringConstraints(pattern=XXH3_PATTERN)]
CORPUS_PATTERN = r"^[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?$"
Dtype = Literal["uint16", "uint32"]
TokenType = np.dtype[np.uint16] | np.dtype[np.uint32]


def shard_name(index: int) -> str:
    """The file of a shard's tokens."""
    return f"shard-{index:06d}.tok"


def index_name(index: int) -> str:
    """The file of a shard's document offsets."""
    return f"shard-{index:06d}.idx"


def tar_index_name(shard: str) -> str:
    """The file of a tar file's sample offsets."""
    return f"{shard}.idx"


class TokenizerInfo(Model):
    """By what text became tokens. `digest` is of the tokenizer's own file, where it has one."""

    name: str
    vocab_size: int = Field(ge=1, le=1 << 32)
    end_of_document: int | None = Field(default=None, ge=0)
    digest: str | None = None

    @property
    def dtype(self) -> Dtype:
        """The smallest that holds every token."""
        return "uint16" if self.vocab_size <= 1 << 16 else "uint32"

    @property
    def token_type(self) -> TokenType:
        """The type of a token on disk."""
        return np.dtype("<u2") if self.dtype == "uint16" else np.dtype("<u4")

    @model_validator(mode="after")
    def _knows_its_end(self) -> Self:
        if self.end_of_document is not None and self.end_of_document >= self.vocab_size:
            raise ValueError(
                f"end_of_document ({self.end_of_document}) must be below the vocabulary's size "
                f"({self.vocab_size})"
            )
        return self


class OffsetIndex(Model):
    """The offsets at which the documents, or samples, that begin in one shard do."""

    name: str
    count: int = Field(ge=0)
    xxh3: Xxh3


class ShardFile(Model):
    """One file of data; `blocks` are the digests of its blocks in order, the last one shorter."""

    name: str
    size_bytes: int = Field(ge=1)
    xxh3: Xxh3
    blocks: tuple[Xxh3, ...]

    @property
    @abstractmethod
    def index(self) -> OffsetIndex:
        """Where its documents or samples begin."""

    @property
    @abstractmethod
    def extent(self) -> int:
        """All offsets of the index are below it."""


class Shard(ShardFile):
    """One file of tokens."""

    tokens: int = Field(ge=1)
    documents: OffsetIndex

    @property
    def index(self) -> OffsetIndex:
        """In tokens."""
        return self.documents

    @property
    def extent(self) -> int:
        """In tokens."""
        return self.tokens


class SnapshotManifest(Model):
    """All of a snapshot but its data. `name` is the corpus and the digest of all else."""

    what: ClassVar[str] = "a snapshot"
    version: Literal[1] = 1
    name: str
    block_bytes: int = Field(ge=4)
    shards: tuple[ShardFile, ...]

    @property
    @abstractmethod
    def item_type(self) -> np.dtype[Any]:
        """As what a shard is mapped."""

    @property
    def corpus(self) -> str:
        """The name before the digest."""
        return self.name.partition("@")[0]

    @property
    def digest(self) -> str:
        """The digest in the name: 32 hex digits."""
        return self.name.rpartition("-")[2]

    def block_range(self, shard: int, block: int) -> tuple[int, int]:
        """First byte and length of a block in its shard."""
        start = block * self.block_bytes
        return start, min(self.block_bytes, self.shards[shard].size_bytes - start)

    @classmethod
    def named(cls, corpus: str, **fields: object) -> Self:
        """The manifest that says this, by its name."""
        draft = cls.model_construct(name="", **fields)  # type: ignore[arg-type]
        said = draft.model_dump(mode="json", exclude={"name"}, exclude_none=True)
        return cls.model_validate(said | {"name": f"{corpus}@xxh3-{_digest_of(said)}"})

    @classmethod
    def parse(cls, raw: bytes, where: str) -> Self:
        """Read a manifest and see that it agrees with itself. `where` is for the message.

        Raises:
            DataError: it is not a manifest of this kind, is damaged, or was changed by hand.
        """
        try:
            return cls.model_validate_json(raw)
        except ValidationError as error:
            wrong = "; ".join(f"{e.field}: {e.message}" for e in field_errors(error)[:3])
            raise DataError(f"{where}: not a whole manifest of {cls.what}: {wrong}") from None

    @model_validator(mode="after")
    def _is_what_it_is_named(self) -> Self:
        said = self.model_dump(mode="json", exclude={"name"}, exclude_none=True)
        if self.name.rpartition("@")[2] != f"xxh3-{_digest_of(said)}":
            raise ValueError(f"the content is not that of {self.name}: damaged or changed by hand")
        if any(
            len(shard.blocks) != -(-shard.size_bytes // self.block_bytes) for shard in self.shards
        ):
            raise ValueError("a shard has a wrong number of blocks")
        return self


class Manifest(SnapshotManifest):
    """All of a token snapshot but its tokens."""

    what: ClassVar[str] = "a token snapshot"
    tokenizer: TokenizerInfo
    dtype: Dtype
    shard_tokens: int = Field(ge=1)
    tokens: int = Field(ge=1)
    documents: int = Field(ge=1)
    shards: tuple[Shard, ...]

    @property
    def item_type(self) -> TokenType:
        """The type of a token on disk."""
        return self.tokenizer.token_type

    @classmethod
    def of(
        cls,
        corpus: str,
        *,
        tokenizer: TokenizerInfo,
        block_bytes: int,
        shard_tokens: int,
        shards: tuple[Shard, ...],
    ) -> Self:
        """The manifest of these shards, with its name."""
        return cls.named(
            corpus,
            tokenizer=tokenizer,
            dtype=tokenizer.dtype,
            block_bytes=block_bytes,
            shard_tokens=shard_tokens,
            tokens=sum(shard.tokens for shard in shards),
            documents=sum(shard.documents.count for shard in shards),
            shards=shards,
        )

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> Self:
        width = self.item_type.itemsize
        if self.dtype != self.tokenizer.dtype or self.block_bytes % width:
            raise ValueError(f"dtype {self.dtype} does not fit the tokenizer, or block_bytes")
        if self.shard_tokens * width % self.block_bytes:
            raise ValueError("a whole shard must be whole blocks")
        if not self.shards or self.tokens != sum(shard.tokens for shard in self.shards):
            raise ValueError("tokens must be those of all shards")
        for index, shard in enumerate(self.shards):
            last = index == len(self.shards) - 1
            if (
                shard.name != shard_name(index)
                or shard.documents.name != index_name(index)
                or shard.size_bytes != shard.tokens * width
                or shard.tokens > self.shard_tokens
                or (not last and shard.tokens != self.shard_tokens)
            ):
                raise ValueError(f"shards.{index} has a wrong name or size")
        return self


class TarShard(ShardFile):
    """One tar file, as it was made; its last sample ends at byte `end`."""

    end: int = Field(ge=1)
    samples: OffsetIndex

    @property
    def index(self) -> OffsetIndex:
        """In bytes."""
        return self.samples

    @property
    def extent(self) -> int:
        """In bytes."""
        return self.end


class TarManifest(SnapshotManifest):
    """All of a snapshot of tar shards but its samples."""

    what: ClassVar[str] = "a snapshot of tar shards"
    kind: Literal["tar"] = "tar"
    samples: int = Field(ge=1)
    shards: tuple[TarShard, ...]

    @property
    def item_type(self) -> np.dtype[np.uint8]:
        """Bytes."""
        return np.dtype(np.uint8)

    @classmethod
    def of(cls, corpus: str, *, block_bytes: int, shards: tuple[TarShard, ...]) -> Self:
        """The manifest of these shards, with its name."""
        samples = sum(shard.samples.count for shard in shards)
        return cls.named(
            corpus, kind="tar", block_bytes=block_bytes, samples=samples, shards=shards
        )

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> Self:
        if self.samples != sum(shard.samples.count for shard in self.shards):
            raise ValueError("samples must be those of all shards")
        if any(shard.end > shard.size_bytes for shard in self.shards):
            raise ValueError("a shard ends before its last sample does")
        for index, shard in enumerate(self.shards):  # no path: files are opened by these names
            plain = "/" not in shard.name and shard.name.endswith(TAR_SUFFIX)
            if not plain or shard.samples.name != tar_index_name(shard.name):
                raise ValueError(f"shards.{index} has a wrong name")
        return self


def _digest_of(said: object) -> str:
    text = json.dumps(said, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return digest_bytes(text.encode())


def parse_any(raw: bytes, where: str) -> Manifest | TarManifest:
    """A manifest of either kind. Raises DataError."""
    with contextlib.suppress(ValueError):
        said = json.loads(raw)
        if isinstance(said, dict) and said.get("kind") == "tar":
            return TarManifest.parse(raw, where)
    return Manifest.parse(raw, where)


def manifest_bytes(folder: Path) -> bytes:
    """The manifest of a snapshot in a folder, unread. Raises DataError."""
    path = folder / MANIFEST_FILE
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(
            f"{path}: {error.strerror}; make a snapshot with `gangline data prepare`"
        ) from error


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a token snapshot in a folder.

    Raises:
        DataError: there is none, or it is not whole.
    """
    return Manifest.parse(manifest_bytes(folder), str(folder / MANIFEST_FILE))
