"""Samples that a run goes without: the same ones on every rank, at every world size, for good."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline_schemas.events.workers import LEFT_OUT_RANGES, SampleRange
from gangline_worker.data.left_out import LEFT_OUT_ENV, LeftOut, left_out_of_job, used_in, widened
from gangline_worker.data.text import TextData

RANGES = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20)), max_size=6)
TEXT = np.arange(2_000, dtype=np.int64).astype(np.uint8)


def left_out(ranges: list[tuple[int, int]]) -> LeftOut:
    return LeftOut().join(SampleRange(first=first, count=count) for first, count in ranges)


def used(ranges: list[tuple[int, int]], count: int) -> list[int]:
    """The places of the first `count` samples that are used, one by one."""
    gone = {place for first, length in ranges for place in range(first, first + length)}
    return [place for place in range(count + len(gone)) if place not in gone][:count]


@given(ranges=RANGES, position=st.integers(0, 100), count=st.integers(1, 60))
def test_places_and_positions_are_those_of_counting_by_hand(
    ranges: list[tuple[int, int]], position: int, count: int
) -> None:
    found = left_out(ranges)
    places = used(ranges, position + count)
    assert found.place(position) == places[position]
    assert found.position(places[position]) == position
    runs = list(found.runs(position, count))
    assert [at for first, size in runs for at in range(first, first + size)] == places[position:]
    assert all(size for _, size in runs)
    ends = [first + size for first, size in runs]
    assert all(end < first for end, (first, _) in zip(ends, runs[1:], strict=False)), "unbroken"


@given(ranges=RANGES)
def test_ranges_are_joined_whatever_their_order(ranges: list[tuple[int, int]]) -> None:
    one = left_out(ranges)
    assert one == left_out(ranges[::-1]) == one.join(one.ranges)
    assert one.count == len({at for first, n in ranges for at in range(first, first + n)})
    pairs = zip(one.ranges, one.ranges[1:], strict=False)
    assert all(a.first + a.count < b.first for a, b in pairs)


@given(
    ranges=RANGES,
    position=st.integers(0, 80),
    share=st.integers(1, 4),
    worlds=st.tuples(st.integers(1, 4), st.integers(1, 4)),
)
def test_ranks_of_every_world_size_read_the_same_batch_without_them(
    ranges: list[tuple[int, int]], position: int, share: int, worlds: tuple[int, int]
) -> None:
    data = TextData.of(TEXT, seq_len=8, seed=5)
    found, size = left_out(ranges), share * worlds[0] * worlds[1]
    whole = [data.batch(place, 1, 0, 1) for place in used(ranges, position + size)[position:]]
    for world in worlds:
        parts = [found.batch(data, position, size, rank, world) for rank in range(world)]
        for name in ("inputs", "targets"):
            read = np.concatenate([getattr(part, name) for part in parts])
            assert np.array_equal(read, np.concatenate([getattr(one, name) for one in whole]))


def test_without_any_a_batch_is_read_as_it_is() -> None:
    data = TextData.of(TEXT, seq_len=8, seed=5)
    read, plain = LeftOut().batch(data, 12, 6, 1, 3), data.batch(12, 6, 1, 3)
    assert np.array_equal(read.inputs, plain.inputs)


def test_what_is_added_are_samples_that_were_used() -> None:
    once = widened(LeftOut(), range(16, 24), samples_max=20)
    assert once == left_out([(16, 8)])
    again = widened(once, range(12, 20), samples_max=20)  # the places 12 to 15 and 24 to 27
    assert again == left_out([(12, 16)])
    assert widened(again, range(12, 16), samples_max=20) == left_out([(12, 20)])
    assert widened(again, range(12, 17), samples_max=20) is None


def test_no_more_ranges_are_left_out_than_an_event_may_name() -> None:
    full = left_out([(10 * at, 1) for at in range(LEFT_OUT_RANGES)])
    assert len(full.ranges) == LEFT_OUT_RANGES
    assert widened(full, range(4, 5), samples_max=10**6) is None
    assert widened(full, range(1), samples_max=10**6) is not None  # it touches the first one


@pytest.mark.parametrize(
    ("before", "used"),
    [(0, range(456, 480)), (2, range(440, 480)), (9, range(400, 480))],
)
def test_the_samples_of_steps_are_those_that_the_attempt_took_in_them(
    before: int, used: range
) -> None:
    # It began after step 10 with 400 samples used, and took 8 in each; the steps are 18, 19, 20.
    assert used_in(range(18, 21), before=before, size=8, began=(10, 400)) == used


def test_a_rank_is_told_by_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(LEFT_OUT_ENV, raising=False)
    assert left_out_of_job() == LeftOut()
    monkeypatch.setenv(LEFT_OUT_ENV, json.dumps([{"first": 16, "count": 8}]))
    assert left_out_of_job() == left_out([(16, 8)])
