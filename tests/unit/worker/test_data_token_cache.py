"""Tokens from a store: what is fetched, cached, healed and evicted."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gangline_storage import LocalStore, NotFound
from gangline_worker.data import in_memory
from gangline_worker.data.cache import CacheFolder
from gangline_worker.data.errors import DataError, DataShardError
from gangline_worker.data.manifest import Manifest
from gangline_worker.data.opening import ReadSettings
from gangline_worker.data.prepare import prepare
from gangline_worker.data.source import store_snapshot
from gangline_worker.data.tokenizer import ByteTokenizer
from gangline_worker.data.tokens import TokenData, TokenReader
from support.builders.data import (
    BLOCK_BYTES,
    SHARD_TOKENS,
    flip,
    small_snapshot,
    small_sources,
    text_bytes,
)
from support.fixtures.token_snapshot import BLOCK_TOKENS, snapshot, tokens_of

__all__ = ["snapshot"]


LIMIT_BYTES = 1 << 30
DIGEST = "0123456789abcdef" * 2


class CountingStore:
    """A folder as a store, with what was asked of it.

    The next answers about `spoilt`, the first block that is asked for, can be spoilt. No answer
    comes before `together` blocks were asked for.
    """

    def __init__(self, folder: Path) -> None:
        self._inner = LocalStore(folder)
        self.asked: list[tuple[str, int]] = []
        self.spoil_next = 0
        self.spoilt: tuple[str, int] | None = None
        self.together = 1
        self._more_asked = threading.Condition()

    def get(self, key: str) -> bytes:
        return self._inner.get(key)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        block = key, start // BLOCK_BYTES
        with self._more_asked:
            self.asked.append(block)
            self._more_asked.notify_all()
            enough = self._more_asked.wait_for(lambda: len(self.asked) >= self.together, 60)
        assert enough, f"only {self.asked} are asked for at the same time"
        self.spoilt = self.spoilt or block
        data = self._inner.get_range(key, start, length)
        if self.spoil_next and block == self.spoilt:
            self.spoil_next -= 1
            return data[:-1] + bytes([data[-1] ^ 1])
        return data


def store_reader(
    store: CountingStore, cache: Path, *, limit_bytes: int = LIMIT_BYTES, max_damaged: int = 8
) -> TokenReader:
    folder = CacheFolder(cache, limit_bytes)
    snapshot = store_snapshot(store, folder)  # type: ignore[arg-type]
    return TokenReader(snapshot, max_damaged=max_damaged, complain=str)


def test_a_store_is_asked_once_for_what_is_used(
    snapshot: tuple[Path, Manifest, bytes], tmp_path: Path
) -> None:
    out, manifest, text = snapshot
    store = CountingStore(out)
    reader = store_reader(store, tmp_path / "cache")
    for _ in range(2):
        assert (
            tokens_of(reader, BLOCK_TOKENS + 5, BLOCK_TOKENS)
            == (text[BLOCK_TOKENS + 5 : 2 * BLOCK_TOKENS + 5])
        )
    assert store.asked == [("shard-000000.tok", 1), ("shard-000000.tok", 2)]
    later = store_reader(store, tmp_path / "cache")
    assert tokens_of(later, 0, len(text)) == text
    assert len(store.asked) == sum(len(shard.blocks) for shard in manifest.shards)
    assert later.source.refetched == 0


def test_a_cache_that_was_damaged_is_healed(
    snapshot: tuple[Path, Manifest, bytes], tmp_path: Path
) -> None:
    out, manifest, text = snapshot
    store = CountingStore(out)
    assert tokens_of(store_reader(store, tmp_path), 0, len(text)) == text
    asked = len(store.asked)
    cached = tmp_path / manifest.digest
    flip(cached / "shard-000001.tok", BLOCK_BYTES + 9)
    (cached / "shard-000002.tok").write_bytes(b"")
    (cached / "shard-000003.tok").unlink()
    flip(cached / "shard-000004.tok", 0)
    longer = cached / "shard-000004.tok"
    longer.write_bytes(longer.read_bytes() + b"more")
    reader = store_reader(store, tmp_path)
    assert tokens_of(reader, 0, len(text)) == text
    assert len(store.asked) - asked == 1 + 4 + 4 + 4
    assert reader.source.refetched == 1
    assert reader.blocks.quarantined == {}


@pytest.mark.parametrize(("spoilt", "left_out"), [(1, 0), (2, 1)])
def test_a_bad_answer_is_asked_for_once_more(
    snapshot: tuple[Path, Manifest, bytes], tmp_path: Path, spoilt: int, left_out: int
) -> None:
    out, _, text = snapshot
    store = CountingStore(out)
    store.spoil_next = spoilt
    data = TokenData(store_reader(store, tmp_path), seq_len=16, seed=3)
    batch = data.batch(0, 4, 0, 1)
    assert len(data.reader.blocks.quarantined) == left_out
    assert data.reader.source.refetched == 1
    windows = data.order.at(0, 4).tolist()
    right = [
        bytes(row) == text[window * 16 : window * 16 + 16]
        for row, window in zip(batch.inputs.tolist(), windows, strict=True)
    ]
    assert right == [not left_out, True, True, True]


def test_what_the_store_has_lost_is_named(tmp_path: Path) -> None:
    out, _, _ = small_snapshot(tmp_path)
    (out / "shard-000002.tok").unlink()
    reader = store_reader(CountingStore(out), tmp_path / "cache", max_damaged=0)
    with pytest.raises(DataShardError, match=r"shard-000002\.tok block 1 is corrupt: is missing"):
        tokens_of(reader, 2 * SHARD_TOKENS + BLOCK_TOKENS, 1)


def test_blocks_of_a_batch_are_asked_for_side_by_side(
    snapshot: tuple[Path, Manifest, bytes], tmp_path: Path
) -> None:
    out, _, text = snapshot
    store = CountingStore(out)
    data = TokenData(store_reader(store, tmp_path), seq_len=16, seed=3)
    windows = data.order.at(0, 4).tolist()
    needed = {window * 16 // BLOCK_TOKENS for window in windows}
    assert len(needed) > 2
    store.together = len(needed)
    rows = data.batch(0, 4, 0, 1).inputs.tolist()
    assert [bytes(row) for row in rows] == [text[at * 16 : at * 16 + 16] for at in windows]


def test_a_file_may_leave_the_cache_while_it_is_opened(
    snapshot: tuple[Path, Manifest, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process makes room before the file is mapped, at each first use of a shard."""
    out, _, text = snapshot
    removed: set[Path] = set()
    ftruncate = os.ftruncate

    def remove(handle: int, size_bytes: int) -> None:
        ftruncate(handle, size_bytes)
        path = Path(f"/proc/self/fd/{handle}").readlink()
        if path not in removed:
            removed.add(path)
            path.unlink()

    monkeypatch.setattr(os, "ftruncate", remove)
    reader = store_reader(CountingStore(out), tmp_path / "cache")
    assert tokens_of(reader, 0, len(text)) == text
    assert len(removed) == len(reader.manifest.shards)


def test_a_file_may_be_replaced_in_the_cache_while_it_is_opened(
    snapshot: tuple[Path, Manifest, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is mapped is a hole, and another process has a whole file of that name right after."""
    out, manifest, text = snapshot
    full = tmp_path / "full"
    assert tokens_of(store_reader(CountingStore(out), full), 0, len(text)) == text
    others = {shard.name: full / manifest.digest / shard.name for shard in manifest.shards}
    cached = tmp_path / "cache" / manifest.digest
    memmap = np.memmap

    def replace(file: Any, **kwargs: Any) -> object:
        found = memmap(file, **kwargs)
        name = Path(file.name).name
        if other := others.pop(name, None):
            other.replace(cached / name)
        return found

    monkeypatch.setattr(np, "memmap", replace)
    reader = store_reader(CountingStore(out), tmp_path / "cache")
    assert tokens_of(reader, 0, len(text)) == text
    assert not others


def disk_bytes(folder: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in folder.glob("*/*"))


@pytest.fixture
def large(tmp_path: Path) -> tuple[Path, Manifest, bytes]:
    """Eight shards of 64 KiB, so that files take what they hold."""
    text = tmp_path / "large.txt"
    text.write_bytes(text_bytes(8 * 32768 - 1))
    out = tmp_path / "large"
    sources = small_sources([text], out, shard_tokens=32768, block_bytes=16384)
    manifest = prepare(out, sources, ByteTokenizer(), lambda _: None)
    return out, manifest, text.read_bytes() + b"\0"


def test_the_cache_keeps_its_limit_and_two_readers_agree(
    large: tuple[Path, Manifest, bytes], tmp_path: Path
) -> None:
    out, _, text = large
    store = CountingStore(out)
    cache, limit = tmp_path / "cache", 3 * 65536
    readers = [store_reader(store, cache, limit_bytes=limit) for _ in range(2)]
    order = np.random.default_rng(5).permutation(len(text) // 1000)
    for window in order.tolist():
        for reader in readers:
            start = window * 1000
            assert tokens_of(reader, start, 1000) == text[start : start + 1000]
            assert disk_bytes(cache) <= limit + 2 * (limit // 16 + 16384)
    assert len(store.asked) > 40  # it does not fit, so pieces came again
    assert all(reader.blocks.quarantined == {} for reader in readers)


@pytest.mark.parametrize(("shuffle_bytes", "fetched"), [(2 * 65536, (32, 40)), (0, (300, 900))])
def test_a_shuffle_in_parts_fetches_each_block_about_once(
    large: tuple[Path, Manifest, bytes],
    tmp_path: Path,
    shuffle_bytes: int,
    fetched: tuple[int, int],
) -> None:
    """Eight shards of four blocks, and a cache of four shards."""
    out, _, text = large
    store = CountingStore(out)
    reader = store_reader(store, tmp_path / "cache", limit_bytes=4 * 65536)
    data = TokenData(reader, seq_len=256, seed=3, shuffle_bytes=shuffle_bytes)
    rows = data.batch(0, data.order.n, 0, 1).inputs.tolist()
    seen = sorted(bytes(row) for row in rows)
    assert seen == sorted(text[i * 256 : i * 256 + 256] for i in range(data.order.n))
    assert fetched[0] <= len(store.asked) <= fetched[1]


def test_a_shard_that_is_larger_than_the_cache_does_not_stay_there(tmp_path: Path) -> None:
    text = tmp_path / "one.txt"
    text.write_bytes(text_bytes(8 * 32768 - 1))
    sources = small_sources([text], tmp_path / "one", shard_tokens=8 * 32768, block_bytes=16384)
    prepare(tmp_path / "one", sources, ByteTokenizer(), lambda _: None)
    whole = text.read_bytes() + b"\0"
    cache, limit = tmp_path / "cache", 4 * 16384  # of a shard of 32 such blocks
    reader = store_reader(CountingStore(tmp_path / "one"), cache, limit_bytes=limit)
    data = TokenData(reader, seq_len=256, seed=3)
    for position in range(0, 256, 2):
        rows = data.batch(position, 2, 0, 1).inputs.tolist()
        windows = data.order.at(position, 2).tolist()
        assert [bytes(row) for row in rows] == [whole[at * 256 : at * 256 + 256] for at in windows]
        assert disk_bytes(cache) <= limit + 4 * 16384  # and the blocks of a batch


def test_one_that_holds_all_of_a_sample_is_kept_while_it_is_read(
    large: tuple[Path, Manifest, bytes], tmp_path: Path
) -> None:
    out, _, text = large
    reader = store_reader(CountingStore(out), tmp_path / "cache", limit_bytes=16384)
    assert tokens_of(reader, 0, 32768) == text[:32768]


def file_of(cache: CacheFolder, name: str) -> Path:
    with cache.file(DIGEST, name, 8192) as file:
        return Path(str(file.name))


def test_room_is_made_by_what_was_not_used_for_longest(tmp_path: Path) -> None:
    cache = CacheFolder(tmp_path, limit_bytes=20_000)
    for age, name in enumerate(("newest", "kept", "old", "oldest")):
        path = file_of(cache, name)
        assert cache.write(path, path.stat().st_ino, 0, b"x" * 8192)
        os.utime(path, (1000 - age, 1000 - age))
    assert cache.due
    left = cache.make_room(keep=tmp_path / DIGEST / "kept")
    assert {path.name for path in left} == {"newest", "kept"}
    assert not cache.due
    other = tmp_path / DIGEST / "kept"
    inode = other.stat().st_ino
    other.rename(tmp_path / "held")
    assert not cache.write(other, inode, 0, b"into a file that is gone")
    assert not cache.write(file_of(cache, "kept"), inode, 0, b"another")
    assert not any(other.read_bytes())


def test_only_files_of_the_cache_are_deleted(tmp_path: Path) -> None:
    """`data_cache` may name a folder that has other things, such as /scratch."""
    own = tmp_path / "my-project" / "results.npy"
    own.parent.mkdir()
    own.write_bytes(b"x" * 50_000)
    os.utime(own, (1, 1))
    (own.parent / "runs").mkdir()
    cache = CacheFolder(tmp_path, limit_bytes=20_000)
    paths = [file_of(cache, f"shard-00000{number}.tok") for number in range(2)]
    for path in paths:
        assert cache.write(path, path.stat().st_ino, 0, b"x" * 8192)
    assert set(cache.make_room(keep=paths[1])) == set(paths)
    assert own.stat().st_size == 50_000


def test_the_cache_folder_has_a_place_by_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GANGLINE_DATA_CACHE", str(tmp_path / "node"))
    assert ReadSettings().cache_folder().folder == tmp_path / "node"
    monkeypatch.delenv("GANGLINE_DATA_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert ReadSettings().cache_folder().folder == tmp_path / ".cache/gangline/data"


def test_a_store_that_loses_its_object_between_asks_is_damage_not_a_crash(tmp_path: Path) -> None:
    out, _, _ = small_snapshot(tmp_path)
    store = CountingStore(out)

    def lost(key: str, start: int, length: int) -> bytes:
        raise NotFound(f"no object {key}")

    reader = store_reader(store, tmp_path / "cache")
    store.get_range = lost  # type: ignore[method-assign]
    data = TokenData(reader, seq_len=16, seed=1)
    with pytest.raises(DataShardError, match="is missing in the store"):
        data.batch(0, 8, 0, 1)


def is_full(monkeypatch: pytest.MonkeyPatch, after_bytes: int) -> None:
    """The disk takes so much more, and then nothing."""
    pwrite, left = os.pwrite, [after_bytes]

    def writes(handle: int, data: bytes, start: int) -> int:
        if len(data) > left[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        left[0] -= len(data)
        return pwrite(handle, data, start)

    monkeypatch.setattr(os, "pwrite", writes)


def test_with_a_full_disk_data_comes_from_the_store_through_memory(
    large: tuple[Path, Manifest, bytes],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    out, _, text = large
    is_full(monkeypatch, after_bytes=3 * 16384)
    monkeypatch.setattr(in_memory, "KEPT_BYTES", 4 * 16384)
    store = CountingStore(out)
    reader = store_reader(store, tmp_path / "cache")
    data = TokenData(reader, seq_len=256, seed=3)
    for position in range(0, 512, 16):
        rows = data.batch(position, 16, 0, 1).inputs.tolist()
        windows = data.order.at(position, 16).tolist()
        assert [bytes(row) for row in rows] == [text[at * 256 : at * 256 + 256] for at in windows]
        assert reader.source.verified.sum() <= 4 + 2 * 16, "memory keeps all blocks"
    assert reader.blocks.quarantined == {}
    said = capfd.readouterr().err
    assert said.count("No space left on device; from now on blocks are fetched") == 1
    assert "free space there" in said
    cached = {(name, block) for name, block in store.asked[:3]}
    assert not cached & set(store.asked[3:]), "the cache is still read"


def test_a_cache_that_cannot_be_written_for_another_reason_ends_the_run(
    snapshot: tuple[Path, Manifest, bytes], tmp_path: Path
) -> None:
    out, _, _ = snapshot
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(DataError, match="Not a directory; free space there"):
        tokens_of(store_reader(CountingStore(out), tmp_path / "cache"), 0, 1)
