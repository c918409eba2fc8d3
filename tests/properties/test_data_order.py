"""The order of samples: every sample once an epoch, alike for every world size."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gangline_worker.data.errors import DataError
from gangline_worker.data.order import BatchError, GroupedOrder, SampleOrder, permute
from gangline_worker.data.text import TextData, load_text

SEEDS = st.integers(0, 2**63 - 1)


@given(n=st.integers(1, 700), seed=SEEDS, epoch=st.integers(0, 2**40))
def test_an_epoch_visits_each_sample_once(n: int, seed: int, epoch: int) -> None:
    seen = permute(np.arange(n, dtype=np.uint64), n, seed=seed, epoch=epoch)
    assert sorted(seen.tolist()) == list(range(n))


@given(
    n=st.integers(1, 300),
    seed=SEEDS,
    position=st.integers(0, 10_000),
    share=st.integers(1, 5),
    worlds=st.tuples(st.integers(1, 6), st.integers(1, 6)),
)
def test_every_world_size_sees_the_same_global_order(
    n: int, seed: int, position: int, share: int, worlds: tuple[int, int]
) -> None:
    order = SampleOrder(n, seed)
    batch = share * worlds[0] * worlds[1]
    whole = order.at(position, batch).tolist()
    for world in worlds:
        parts = [order.of_rank(position, batch, rank, world).tolist() for rank in range(world)]
        assert [sample for part in parts for sample in part] == whole


@given(n=st.integers(2, 300), seed=SEEDS, batch=st.integers(1, 50), cut=st.integers(0, 400))
def test_any_cut_of_the_stream_is_the_same_stream(n: int, seed: int, batch: int, cut: int) -> None:
    order = SampleOrder(n, seed)
    stream = order.at(0, cut + batch).tolist()
    assert order.at(cut, batch).tolist() == stream[cut:]
    epochs = [stream[i : i + n] for i in range(0, len(stream) - n + 1, n)]
    assert all(sorted(epoch) == list(range(n)) for epoch in epochs)


@settings(deadline=None, max_examples=50)
@given(
    shares=st.lists(
        st.tuples(st.integers(1, 8), st.integers(1, 3), st.integers(1, 5)), min_size=1, max_size=12
    ),
    n=st.integers(1, 200),
    seed=SEEDS,
    groups=st.none() | st.tuples(st.integers(1, 40), st.integers(1, 6)),
)
def test_whatever_the_world_sizes_no_sample_is_missed_or_doubled(
    shares: list[tuple[int, int, int]], n: int, seed: int, groups: tuple[int, int] | None
) -> None:
    """A run that stops and resumes at other world sizes and batches; its state is the position."""
    order = SampleOrder(n, seed) if groups is None else GroupedOrder(n, seed, *groups)
    position, seen = 0, []
    while position < 2 * n:
        for world, share, steps in shares:
            for _ in range(steps):
                batch = world * share
                for rank in range(world):
                    seen += order.of_rank(position, batch, rank, world).tolist()
                position += batch
    assert len(seen) == position
    for first in range(0, position - n + 1, n):
        assert sorted(seen[first : first + n]) == list(range(n))


@settings(deadline=None, max_examples=50)
@given(
    n=st.integers(1, 400),
    group=st.integers(1, 50),
    together=st.integers(1, 6),
    seed=SEEDS,
    epoch=st.integers(0, 5),
)
def test_a_grouped_epoch_stays_in_few_groups_at_a_time(
    n: int, group: int, together: int, seed: int, epoch: int
) -> None:
    order = GroupedOrder(n, seed, group, together)
    windows = order.at(epoch * n, n).tolist()
    assert sorted(windows) == list(range(n))
    whole = n // group * group
    for start in range(0, whole, group * together):
        part = windows[start : min(whole, start + group * together)]
        assert len({window // group for window in part}) * group == len(part)
    assert sorted(windows[whole:]) == list(range(whole, n))
    cut = n // 3
    assert order.at(epoch * n + cut, n - cut).tolist() == windows[cut:]


def test_groups_and_their_windows_are_shuffled() -> None:
    order = GroupedOrder(1200, 7, group=100, together=3)
    epochs = [order.at(epoch * 1200, 1200).tolist() for epoch in range(3)]
    assert len({tuple(windows) for windows in epochs}) == 3
    for windows in epochs:
        for start in range(0, 1200, 300):
            part = windows[start : start + 300]
            falls = sum(a > b for a, b in itertools.pairwise(part))
            assert 110 < falls < 190
            assert len({window // 100 for window in part[:50]}) == 3
        first = [sorted({window // 100 for window in windows[i : i + 300]}) for i in (0, 300)]
        assert first != [[0, 1, 2], [3, 4, 5]]
    with pytest.raises(ValueError, match="at least 1"):
        GroupedOrder(10, 1, group=0, together=1)


def test_seeds_and_epochs_shuffle_differently() -> None:
    indices = np.arange(1000, dtype=np.uint64)
    orders = {
        tuple(permute(indices, 1000, seed=seed, epoch=epoch).tolist())
        for seed in range(5)
        for epoch in range(5)
    }
    assert len(orders) == 25
    for order in orders:  # far from sorted: about a half of all steps go down
        falls = sum(a > b for a, b in itertools.pairwise(order))
        assert 400 < falls < 600


def test_a_batch_must_divide_by_the_world() -> None:
    with pytest.raises(BatchError, match=r"batch_size \(7\) does not divide by .* \(2\)"):
        SampleOrder(10, 1).of_rank(0, 7, 0, 2)


def test_targets_are_the_next_bytes_and_windows_cover_the_text(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "two.py").write_bytes(bytes(range(100, 200)))
    (tmp_path / "a.py").write_bytes(bytes(range(100)))
    (tmp_path / "c.txt").write_bytes(b"not asked for")
    text = load_text(str(tmp_path))
    assert text.tolist() == list(range(200))
    data = TextData.of(text, seq_len=10, seed=3)
    batch = data.batch(0, data.order.n, 0, 1)
    assert (batch.targets == batch.inputs + 1).all()
    assert sorted(batch.inputs[:, 0].tolist()) == list(range(0, 190, 10))
    assert load_text(str(tmp_path), max_bytes=150).tolist() == list(range(150))
    assert load_text(str(tmp_path / "c.txt")).tobytes() == b"not asked for"


def test_no_text_is_told(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no text in"):
        load_text(str(tmp_path))
    with pytest.raises(DataError, match=r"there is no '.*nothing' on this node"):
        load_text(str(tmp_path / "nothing"))
    with pytest.raises(DataError, match="give more text"):
        TextData.of(np.zeros(5, dtype=np.uint8), seq_len=10, seed=1)
