"""Reading token snapshots: every block verified once, damage healed, replaced, or given up."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gangline_storage import LocalStore, NotFound
from gangline_worker.data.blocks import Complain, LeftOut
from gangline_worker.data.cache import CacheFolder
from gangline_worker.data.errors import DataError, DataShardError
from gangline_worker.data.manifest import Manifest
from gangline_worker.data.opening import ReadSettings, open_samples
from gangline_worker.data.prepare import prepare
from gangline_worker.data.source import StoreSource, folder_snapshot, store_snapshot
from gangline_worker.data.text import TextData
from gangline_worker.data.tokenizer import ByteTokenizer
from gangline_worker.data.tokens import (
    TokenData,
    TokenReader,
)
from support.builders.data import (
    BLOCK_BYTES,
    SHARD_TOKENS,
    flip,
    small_snapshot,
    small_sources,
    text_bytes,
)

BLOCK_TOKENS = BLOCK_BYTES // 2
LIMIT_BYTES = 1 << 30


class CountingStore:
    """A folder as a store, with what was asked of it; the next answers can be spoilt."""

    def __init__(self, folder: Path) -> None:
        self._inner = LocalStore(folder)
        self.asked: list[tuple[str, int]] = []
        self.spoil_next = 0

    def get(self, key: str) -> bytes:
        return self._inner.get(key)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        self.asked.append((key, start // BLOCK_BYTES))
        data = self._inner.get_range(key, start, length)
        if self.spoil_next:
            self.spoil_next -= 1
            return data[:-1] + bytes([data[-1] ^ 1])
        return data


def folder_reader(out: Path, max_damaged: int = 8, complain: Complain = str) -> TokenReader:
    return TokenReader(folder_snapshot(out), max_damaged=max_damaged, complain=complain)


def store_reader(
    store: CountingStore, cache: Path, *, limit_bytes: int = LIMIT_BYTES, max_damaged: int = 8
) -> TokenReader:
    folder = CacheFolder(cache, limit_bytes)
    snapshot = store_snapshot(store, folder)  # type: ignore[arg-type]
    return TokenReader(snapshot, max_damaged=max_damaged, complain=str)


def tokens_of(reader: TokenReader, start: int, count: int) -> bytes:
    into = np.empty(count, dtype=np.int64)
    reader.read(start, into)
    return bytes(into.tolist())


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Manifest, bytes]:
    return small_snapshot(tmp_path_factory.mktemp("snapshot"))


@settings(deadline=None)
@given(ranges=st.lists(st.tuples(st.integers(0, 4999), st.integers(1, 3000)), max_size=8))
def test_any_range_is_what_was_written(
    snapshot: tuple[Path, Manifest, bytes], ranges: list[tuple[int, int]]
) -> None:
    out, _, text = snapshot
    reader = folder_reader(out)
    for start, wanted in ranges:
        count = min(wanted, len(text) - start)
        assert tokens_of(reader, start, count) == text[start : start + count]


def test_windows_are_those_of_the_text_in_the_same_order(
    snapshot: tuple[Path, Manifest, bytes],
) -> None:
    out, _, text = snapshot
    tokens = TokenData(folder_reader(out), seq_len=100, seed=7)
    plain = TextData.of(np.frombuffer(text, dtype=np.uint8), seq_len=100, seed=7)
    for position in (0, 40, 96):
        for rank in range(4):
            ours, theirs = (data.batch(position, 8, rank, 4) for data in (tokens, plain))
            assert (ours.inputs == theirs.inputs).all()
            assert (ours.targets == theirs.targets).all()
    assert tokens.counts() == {}


def test_a_block_is_verified_before_its_first_use_and_only_then(tmp_path: Path) -> None:
    out, _, text = small_snapshot(tmp_path)
    reader = folder_reader(out)
    assert tokens_of(reader, 0, 10) == text[:10]
    flip(out / "shard-000000.tok", 0)  # verified already: what the map shows is what is used
    assert tokens_of(reader, 0, 10) != text[:10]
    assert reader.blocks.quarantined == {}
    with pytest.raises(DataShardError, match="block 0"):
        tokens_of(folder_reader(out, max_damaged=0), 0, 10)


def window_of(block: int, seq_len: int) -> int:
    """A window that lies in that block of shard 0 alone."""
    return -(-block * BLOCK_TOKENS // seq_len)


def test_a_damaged_block_is_left_out_and_told(tmp_path: Path) -> None:
    out, _, text = small_snapshot(tmp_path)
    flip(out / "shard-000001.tok", BLOCK_BYTES + 3)
    said: list[LeftOut] = []
    data = TokenData(folder_reader(out, complain=said.append), seq_len=16, seed=3)
    epoch = data.order.n
    batch = data.batch(0, epoch, 0, 1)
    damaged = range(SHARD_TOKENS + BLOCK_TOKENS, SHARD_TOKENS + 2 * BLOCK_TOKENS)
    windows = data.order.at(0, epoch).tolist()
    replaced = 0
    for row, window in zip(batch.inputs.tolist(), windows, strict=True):
        span = range(window * 16, window * 16 + 17)
        if span[-1] < damaged[0] or span[0] > damaged[-1]:
            assert bytes(row) == text[span[0] : span[-1]]
        else:
            replaced += 1
            where = text.find(bytes(row))
            assert where % 16 == 0
            assert where + 16 < damaged[0] or where > damaged[-1]
    assert replaced == BLOCK_TOKENS // 16 + 1
    assert data.counts() == {
        "data_damaged_blocks": 1.0,
        "data_replaced_samples": float(replaced),
        "data_refetched_blocks": 1.0,
    }
    [told] = said
    assert (told.shard, told.block) == ("shard-000001.tok", 1)
    assert f"shard-000001.tok block 1 of {data.reader.manifest.name} is left out" in str(told)


@pytest.mark.parametrize("worlds", [(1, 2), (2, 4), (4, 1)])
def test_what_stands_in_is_the_same_at_every_world_size(
    tmp_path: Path, worlds: tuple[int, int]
) -> None:
    out, _, _ = small_snapshot(tmp_path)
    for shard, block in ((0, 0), (3, 2), (7, 3)):
        flip(out / f"shard-{shard:06d}.tok", block * BLOCK_BYTES)
    streams = []
    for world in worlds:
        ranks = [TokenData(folder_reader(out), seq_len=16, seed=3) for _ in range(world)]
        batches = [
            data.batch(position, 24, rank, world).inputs
            for position in range(0, 480, 24)
            for rank, data in enumerate(ranks)
        ]
        streams.append(np.concatenate(batches).tolist())
        assert sum(data.counts().get("data_replaced_samples", 0) for data in ranks) > 10
    assert streams[0] == streams[1]


def test_stand_ins_are_spread(tmp_path: Path) -> None:
    out, _, _ = small_snapshot(tmp_path)
    flip(out / "shard-000002.tok", 0)
    data = TokenData(folder_reader(out), seq_len=8, seed=3)
    rows = [bytes(row) for row in data.batch(0, data.order.n, 0, 1).inputs.tolist()]
    assert max(rows.count(row) for row in rows) == 2


def test_too_much_damage_ends_it_and_names_shard_and_block(tmp_path: Path) -> None:
    out, _, _ = small_snapshot(tmp_path)
    for block in range(3):
        flip(out / "shard-000004.tok", block * BLOCK_BYTES)
    reader = folder_reader(out, max_damaged=2)
    data = TokenData(reader, seq_len=16, seed=3)
    with pytest.raises(DataShardError, match=r"more than data_max_damaged_blocks \(2\)") as raised:
        data.batch(0, data.order.n, 0, 1)
    assert raised.value.shard == "shard-000004.tok"
    assert raised.value.block in {0, 1, 2}


def test_nothing_left_to_stand_in_ends_it(tmp_path: Path) -> None:
    out, manifest, _ = small_snapshot(tmp_path, size=300)
    for block in range(len(manifest.shards[0].blocks)):
        flip(out / "shard-000000.tok", block * BLOCK_BYTES)
    data = TokenData(folder_reader(out, max_damaged=99), seq_len=16, seed=3)
    with pytest.raises(DataShardError, match="other samples in a row are damaged too"):
        data.batch(0, 1, 0, 1)


@pytest.mark.parametrize("how", ["short", "gone"])
def test_a_shard_of_another_length_is_never_mapped(tmp_path: Path, how: str) -> None:
    out, _, _ = small_snapshot(tmp_path)
    path = out / "shard-000002.tok"
    if how == "short":
        path.write_bytes(path.read_bytes()[:-2])
    else:
        path.unlink()
    with pytest.raises(DataShardError, match=r"shard-000002\.tok is .*(1,022 bytes|No such file)"):
        tokens_of(folder_reader(out), 2 * SHARD_TOKENS, 10)


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


def test_room_is_made_by_what_was_not_used_for_longest(tmp_path: Path) -> None:
    cache = CacheFolder(tmp_path, limit_bytes=20_000)
    for age, name in enumerate(("newest", "kept", "old", "oldest")):
        path = cache.file("snapshot", name, 8192)
        assert cache.write(path, path.stat().st_ino, 0, b"x" * 8192)
        os.utime(path, (1000 - age, 1000 - age))
    assert cache.due
    left = cache.make_room(keep=tmp_path / "snapshot" / "kept")
    assert {path.name for path in left} == {"newest", "kept"}
    assert not cache.due
    other = tmp_path / "snapshot" / "kept"
    inode = other.stat().st_ino
    other.rename(tmp_path / "held")
    assert not cache.write(other, inode, 0, b"into a file that is gone")
    assert not cache.write(cache.file("snapshot", "kept", 8192), inode, 0, b"another")
    assert not any(other.read_bytes())


def test_data_is_opened_by_its_name(snapshot: tuple[Path, Manifest, bytes], tmp_path: Path) -> None:
    out, manifest, text = snapshot
    settings = ReadSettings(cache=tmp_path / "cache", cache_gb=1)
    for source in (str(out), f"file://{out}"):
        data = open_samples(source, seq_len=16, seed=1, complain=str, tokens=settings)
        assert isinstance(data, TokenData)
        assert (data.digest(), data.vocab_size) == (manifest.digest, 256)
    assert isinstance(data.reader.source, StoreSource)
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "a.txt").write_bytes(text)
    plain = open_samples(str(tmp_path / "text"), seq_len=16, seed=1, complain=str, suffix=".txt")
    assert isinstance(plain, TextData)
    for source, message in (
        (f"file://{tmp_path}/text", r"has no manifest\.json"),
        ("s4://bucket/x", "'s4' is not understood"),
    ):
        with pytest.raises(DataError, match=message):
            open_samples(source, seq_len=16, seed=1, complain=str, tokens=settings)


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


def test_a_job_reads_the_snapshot_that_it_names_or_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, manifest, _ = small_snapshot(tmp_path)
    settings = ReadSettings(cache=tmp_path / "cache")

    def opened(source: str) -> str:
        return open_samples(source, seq_len=16, seed=1, complain=str, tokens=settings).digest()

    other = f"corpus@xxh3-{'0' * 32}"
    for source in (str(out), f"file://{out}"):
        for allowed in (manifest.name, "what was written by hand in june"):
            monkeypatch.setenv("GANGLINE_DATA_SNAPSHOT", allowed)
            assert opened(source) == manifest.digest
        monkeypatch.setenv("GANGLINE_DATA_SNAPSHOT", other)
        with pytest.raises(DataError, match=f"and the job names data_snapshot {other}"):
            opened(source)
    with pytest.raises(DataError, match=f"there is no '.*/gone' .* the job names .* {other}"):
        opened(f"{tmp_path}/gone")
    with pytest.raises(DataError, match="is text, and the job names data_snapshot"):
        open_samples(str(tmp_path), seq_len=16, seed=1, complain=str, suffix=".txt")
