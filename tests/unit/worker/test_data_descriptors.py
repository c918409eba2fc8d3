"""Data of more shards than a process may have open files."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from gangline_storage import LocalStore
from gangline_worker.data.cache import CacheFolder
from gangline_worker.data.errors import DataError
from gangline_worker.data.prepare import prepare
from gangline_worker.data.source import Snapshot, folder_snapshot, store_snapshot
from gangline_worker.data.tokenizer import ByteTokenizer
from gangline_worker.data.tokens import TokenReader
from support.builders.data import quiet, small_sources, text_bytes
from support.fixtures.token_snapshot import tokens_of

SHARDS, SHARD_TOKENS, DESCRIPTORS = 400, 256, 256


@pytest.fixture
def many_shards(tmp_path: Path) -> tuple[Path, bytes]:
    text = tmp_path / "text.txt"
    text.write_bytes(text_bytes(SHARDS * SHARD_TOKENS - 1))
    out = tmp_path / "out"
    sources = small_sources([text], out, shard_tokens=SHARD_TOKENS, block_bytes=SHARD_TOKENS)
    prepare(out, sources, ByteTokenizer(), quiet)
    return out, text.read_bytes() + b"\0"


@pytest.fixture
def few_descriptors(many_shards: tuple[Path, bytes]) -> Iterator[None]:
    del many_shards  # it is made before
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def opened(out: Path, cache: Path, *, from_store: bool) -> Snapshot:
    if from_store:
        return store_snapshot(LocalStore(out), CacheFolder(cache, 1 << 30))
    return folder_snapshot(out)


@pytest.mark.parametrize("from_store", [False, True])
@pytest.mark.usefixtures("few_descriptors")
def test_there_may_be_more_shards_than_files_may_be_open(
    many_shards: tuple[Path, bytes], tmp_path: Path, *, from_store: bool
) -> None:
    """The soft limit of a login is 1,024; the hard one is far above it."""
    out, text = many_shards
    snapshot = opened(out, tmp_path / "cache", from_store=from_store)
    reader = TokenReader(snapshot, max_damaged=0, complain=print)
    try:
        assert tokens_of(reader, 0, len(text)) == text
    finally:
        snapshot.source.mapped.clear()


@pytest.mark.usefixtures("few_descriptors")
def test_a_hard_limit_is_no_damage(
    many_shards: tuple[Path, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    out, text = many_shards
    monkeypatch.setattr(resource, "getrlimit", lambda _: (DESCRIPTORS, DESCRIPTORS))
    reader = TokenReader(folder_snapshot(out), max_damaged=0, complain=print)
    with pytest.raises(DataError, match=r"has 400 shards, .* Too many open files; raise"):
        tokens_of(reader, 0, len(text))
    reader.source.mapped.clear()
    assert reader.blocks.quarantined == {}
