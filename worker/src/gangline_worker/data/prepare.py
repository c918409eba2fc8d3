"""Making a token snapshot from text, so that a kill at any moment costs at most one shard's work.

1. The folder is locked, what a killed writer left half-written is removed, and `sources.json` says
   what is prepared: settings and input files. A folder with shards of other sources is refused.
2. Documents become tokens, tokens fill a buffer of one shard.
3. A full shard is written: its tokens, its document offsets, then its record
   (`shard-NNNNNN.json`: digests, and the place in the input where the next one begins), each
   whole, on disk and named before the next. A shard counts from its record on.
4. After the last one `manifest.json` is written and the records go.

To continue, it reads the records, checks that their files are there, and starts at the last place.
The bytes of a shard depend on the sources alone, so an interrupted run gives the same bytes.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
from pydantic import ValidationError

from gangline_schemas.base import Model
from gangline_storage import digest_bytes
from gangline_storage.durable import replace_file
from gangline_storage.keys import TEMPORARY_PREFIX
from gangline_worker.data.errors import DataError
from gangline_worker.data.inputs import START, Document, Input, Place, read_documents
from gangline_worker.data.manifest import (
    MANIFEST_FILE,
    OFFSET_TYPE,
    Manifest,
    OffsetIndex,
    Shard,
    TokenizerInfo,
    index_name,
    read_manifest,
    shard_name,
)
from gangline_worker.data.tokenizer import Tokenizer, Tokens

SOURCES_FILE = "sources.json"


class Sources(Model):
    """The facts that decide the content of a snapshot."""

    corpus: str
    tokenizer: TokenizerInfo
    field: str
    shard_tokens: int
    block_bytes: int
    inputs: tuple[Input, ...]


class Cursor(Model):
    """Where the next token comes from: `skip` tokens of the document at `place` are written."""

    input: int = 0
    place: Place = START
    skip: int = 0


class Record(Model):
    """One finished shard, and where the next one begins."""

    shard: Shard
    next: Cursor


@dataclass(frozen=True)
class Progress:
    """How far a preparation is."""

    inputs_done: int
    inputs: int
    bytes_done: int
    bytes_total: int
    tokens: int
    shards: int


OnProgress = Callable[[Progress], None]


def prepare(out: Path, sources: Sources, tokenizer: Tokenizer, on_progress: OnProgress) -> Manifest:
    """Make the snapshot in `out`, or continue with it; a finished one is only read.

    `on_progress` is called for each document.

    Raises:
        DataError: an input is wrong, `out` holds something else, or another process writes there.
        OSError: the disk is full, or something cannot be read or written.
    """
    out.mkdir(parents=True, exist_ok=True)
    with _locked(out):
        _begin(out, sources)
        if (out / MANIFEST_FILE).exists():
            manifest = read_manifest(out)
        else:
            writer = _Writer(out, sources, _finished(out, sources))
            _fill(writer, sources, tokenizer, on_progress)
            manifest = writer.finish()
        _tidy(out)
        return manifest


@contextlib.contextmanager
def _locked(out: Path) -> Iterator[None]:
    """Only one process writes to a folder; the lock goes with the process."""
    handle = os.open(out, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DataError(f"{out}: another process prepares data there; let it end") from None
        yield
    finally:
        os.close(handle)


def _begin(out: Path, sources: Sources) -> None:
    """Refuse a folder of something else; say what this one is of."""
    for path in out.glob(f"{TEMPORARY_PREFIX}*"):
        path.unlink()
    path = out / SOURCES_FILE
    if not path.exists():
        if any(out.iterdir()):
            raise DataError(f"{out}: is not empty and holds no preparation; name another folder")
        replace_file(path, [sources.encode()])
        return
    try:
        before = Sources.decode(path.read_bytes())
    except ValidationError:
        raise DataError(f"{path}: is damaged; name another folder") from None
    if before != sources and not any(out.glob("shard-*")) and not (out / MANIFEST_FILE).exists():
        replace_file(path, [sources.encode()])  # that one ended before it made anything
        return
    if before != sources:
        given, found = sources.data(), before.data()
        changed = [name for name in given if given[name] != found.get(name)]
        raise DataError(
            f"{out}: was begun with other {', '.join(changed)}; give the same, or name another "
            "folder"
        )


def _record_path(out: Path, index: int) -> Path:
    return out / f"shard-{index:06d}.json"


def _finished(out: Path, sources: Sources) -> list[Record]:
    """The shards from the first on that are whole; a later one is made again."""
    records: list[Record] = []
    while (path := _record_path(out, len(records))).exists():
        try:
            record = Record.decode(path.read_bytes())
        except ValidationError:  # damaged, or of another version
            break
        shard, index = record.shard, record.shard.documents
        sizes = {shard.name: shard.size_bytes, index.name: index.count * OFFSET_TYPE.itemsize}
        try:
            if any((out / name).stat().st_size != size for name, size in sizes.items()):
                break
        except FileNotFoundError:
            break
        records.append(record)
        if shard.tokens < sources.shard_tokens:
            break
    return records


def _tidy(out: Path) -> None:
    for path in out.glob("shard-*.json"):
        path.unlink()


class _Writer:
    """The shard being filled, and those that are written."""

    def __init__(self, out: Path, sources: Sources, records: list[Record]) -> None:
        self._out, self._sources = out, sources
        self._records = records
        self._buffer = np.empty(sources.shard_tokens, dtype=sources.tokenizer.token_type)
        self._filled = 0
        self._starts = array("Q")
        self.cursor = records[-1].next if records else Cursor()

    @property
    def shards(self) -> int:
        """How many are written."""
        return len(self._records)

    @property
    def tokens(self) -> int:
        """How many were taken in so far."""
        return self.shards * self._sources.shard_tokens + self._filled

    def add(self, tokens: Tokens, index: int, place: Place, skip: int) -> None:
        """Take in a document from its token `skip` on; writes each shard that becomes full."""
        taken = skip
        while taken < len(tokens):
            if taken == 0:
                self._starts.append(self._filled)
            take = min(len(self._buffer) - self._filled, len(tokens) - taken)
            self._buffer[self._filled : self._filled + take] = tokens[taken : taken + take]
            self._filled += take
            taken += take
            if self._filled == len(self._buffer):
                self._write(Cursor(input=index, place=place, skip=taken))

    def finish(self) -> Manifest:
        """Write what is left as the last shard, and the manifest."""
        if self._filled:
            self._write(Cursor(input=len(self._sources.inputs)))
        if not self._records:
            raise DataError("no input has any text")
        manifest = Manifest.of(
            self._sources.corpus,
            tokenizer=self._sources.tokenizer,
            block_bytes=self._sources.block_bytes,
            shard_tokens=self._sources.shard_tokens,
            shards=tuple(record.shard for record in self._records),
        )
        replace_file(self._out / MANIFEST_FILE, [manifest.encode()])
        return manifest

    def _write(self, following: Cursor) -> None:
        index, size = self.shards, self._sources.block_bytes
        data = self._buffer[: self._filled].data.cast("B")
        offsets = np.array(self._starts, dtype=OFFSET_TYPE).tobytes()
        replace_file(self._out / shard_name(index), [bytes(data)])
        replace_file(self._out / index_name(index), [offsets])
        shard = Shard(
            name=shard_name(index),
            tokens=self._filled,
            size_bytes=len(data),
            xxh3=digest_bytes(data),
            blocks=tuple(
                digest_bytes(data[start : start + size]) for start in range(0, len(data), size)
            ),
            documents=OffsetIndex(
                name=index_name(index), count=len(self._starts), xxh3=digest_bytes(offsets)
            ),
        )
        record = Record(shard=shard, next=following)
        replace_file(_record_path(self._out, index), [record.encode()])
        self._records.append(record)
        self._filled = 0
        self._starts = array("Q")


def _fill(writer: _Writer, sources: Sources, tokenizer: Tokenizer, on_progress: OnProgress) -> None:
    before = [0, *itertools.accumulate(source.size_bytes for source in sources.inputs)]
    begin = writer.cursor
    for index in range(begin.input, len(sources.inputs)):
        source = sources.inputs[index]
        start, skip = (begin.place, begin.skip) if index == begin.input else (START, 0)
        for document in read_documents(source, start, sources.field):
            writer.add(_encode(document, tokenizer), index, document.place, skip)
            skip = 0
            within = document.place[0] if source.kind == "jsonl" else 0
            on_progress(_progress(writer, before, index, within))
    on_progress(_progress(writer, before, len(sources.inputs), 0))


def _progress(writer: _Writer, before: Sequence[int], index: int, within: int) -> Progress:
    done, total = before[index] + within, before[-1]
    return Progress(index, len(before) - 1, done, total, writer.tokens, writer.shards)


def _encode(document: Document, tokenizer: Tokenizer) -> Tokens:
    """A document's tokens and its end; an empty one has none."""
    try:
        tokens = tokenizer.encode(document.data)
    except UnicodeDecodeError as error:
        line = document.data[: error.start].count(b"\n") + 1
        raise DataError(
            f"{document.where}: line {line} of it is not UTF-8 (byte {error.start}); convert it, "
            "or use the tokenizer bytes"
        ) from None
    info = tokenizer.info
    if not len(tokens):
        return tokens
    if int(tokens.max()) >= info.vocab_size:
        raise DataError(
            f"{document.where}: {info.name} gave token {tokens.max()}, above its vocabulary of "
            f"{info.vocab_size}"
        )
    if info.end_of_document is None:
        return tokens
    ended = np.append(tokens, tokens.dtype.type(info.end_of_document))
    return cast(Tokens, ended)
