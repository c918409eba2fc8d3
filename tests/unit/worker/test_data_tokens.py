"""Reading token snapshots: every block verified once, damage healed, replaced, or given up."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gangline_worker.data.blocks import Complain, LeftOut
from gangline_worker.data.errors import DataError, DataShardError
from gangline_worker.data.manifest import Manifest
from gangline_worker.data.opening import ReadSettings, open_samples
from gangline_worker.data.source import StoreSource, folder_snapshot
from gangline_worker.data.text import TextData
from gangline_worker.data.tokens import TokenData, TokenReader
from support.builders.data import BLOCK_BYTES, SHARD_TOKENS, flip, small_snapshot
from support.fixtures.token_snapshot import BLOCK_TOKENS, snapshot, tokens_of

__all__ = ["snapshot"]


def folder_reader(out: Path, max_damaged: int = 8, complain: Complain = str) -> TokenReader:
    return TokenReader(folder_snapshot(out), max_damaged=max_damaged, complain=complain)


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
