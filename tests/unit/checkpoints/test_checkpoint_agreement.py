"""Manifests that together are one whole checkpoint, and those that are not."""

from __future__ import annotations

import itertools
import math
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gangline_checkpoints.core.policy.agreement import coverage_problem, manifest_problem
from gangline_checkpoints.core.policy.pieces import Pieces
from gangline_schemas.checkpoint import (
    EACH_COPY_BYTES,
    Alike,
    RankManifest,
    TensorSlice,
    shard_name,
)
from gangline_schemas.events.workers import ObjectDigest
from support.builders.checkpoints import part


def piece(
    start: tuple[int, ...],
    shape: tuple[int, ...],
    whole: tuple[int, ...] = (4, 4),
    dtype: str = "float32",
    offset: int = 0,
    item_bytes: int = 4,
) -> TensorSlice:
    return TensorSlice(
        name="w",
        dtype=dtype,
        global_shape=whole,
        start=start,
        shape=shape,
        byte_offset=offset,
        size_bytes=math.prod(shape) * item_bytes,
    )


def manifest(*tensors: TensorSlice, rank: int = 0, size_bytes: int = 1024) -> RankManifest:
    shard = ObjectDigest(key=shard_name(rank), size_bytes=size_bytes, xxh3="0" * 32)
    return RankManifest(
        job_id="job-1", attempt=1, step=20, rank=rank, world_size=2, shard=shard, tensors=tensors
    )


def problem_of(manifests: list[RankManifest]) -> str | None:
    pieces = Pieces()
    return coverage_problem([pieces.of(each.tensors) for each in manifests])


LARGE = piece((0, 0), (2, 4), item_bytes=EACH_COPY_BYTES // 8 + 1)
"""More than what each rank that holds it writes."""


@pytest.mark.parametrize(
    "pieces",
    [
        [piece((0, 0), (2, 4)), piece((2, 0), (2, 4))],
        [piece((0, 0), (2, 4)), piece((0, 0), (2, 4)), piece((2, 0), (2, 4))],
        [piece((), (), ())] * 3,
        [piece((0, 0), (4, 1)), piece((0, 1), (4, 3))],
        [piece((0, 0), (2, 2)), piece((0, 2), (2, 2)), piece((2, 0), (2, 4))],
        [piece((0, 0), (4, 4)), piece((4, 0), (0, 4))],
        [piece((), (), ())],
    ],
)
def test_an_exact_cover_is_fine(pieces: list[TensorSlice]) -> None:
    assert problem_of([manifest(item) for item in pieces]) is None


@pytest.mark.parametrize(
    ("pieces", "says"),
    [
        ([piece((0, 0), (2, 4))], "hold 8 of 16"),
        ([piece((0, 0), (3, 4)), piece((2, 0), (2, 4))], "hold 20 of 16"),
        ([piece((0, 0), (2, 4)), piece((1, 0), (2, 4))], "overlap"),
        ([LARGE, LARGE], "overlap"),
        ([piece((0, 0), (2, 4)), piece((3, 0), (2, 4))], "past its edge"),
        ([piece((0, 0), (2, 4)), piece((2, 0), (2, 4), (5, 4))], "disagree"),
        ([piece((0, 0), (2, 4)), piece((2, 0), (2, 4), dtype="int32")], "disagree"),
        ([piece((0,), (16,))], "dimensions"),
    ],
)
def test_anything_else_is_named(pieces: list[TensorSlice], says: str) -> None:
    problem = problem_of([manifest(item) for item in pieces])
    assert problem is not None
    assert says in problem


@pytest.mark.parametrize("pieces", [[piece((), (), ())] * 2, [piece((0, 0), (2, 4))] * 2])
def test_a_rank_names_no_slice_twice(pieces: list[TensorSlice]) -> None:
    """It would be two places for one tensor; copies lie with several ranks."""
    assert problem_of([manifest(*pieces)]) is not None
    assert problem_of([manifest(pieces[0]), manifest(*pieces)]) is not None


def difference(*digests: str) -> str | None:
    """What is wrong with ranks that hold this of a tensor."""
    alike = Alike()
    for rank, digest in enumerate(digests):
        found = manifest(rank=rank).model_copy(update={"alike": {"w": digest, "v": ONE}})
        alike.add(found)
    return alike.problem()


ONE, OTHER, OF_A_GPU = "xxh3:" + "0" * 16, "xxh3:" + "1" * 16, "sum:" + "2" * 16


def test_what_all_ranks_are_to_hold_is_the_same_on_each() -> None:
    assert difference(ONE, ONE, ONE) is None
    assert difference(ONE, OF_A_GPU, ONE) is None, "not made alike"
    problem = difference(ONE, ONE, OTHER, ONE, OTHER)
    assert problem is not None
    assert "tensor w: the ranks hold different values, 2, 4 not those of rank 0;" in problem
    assert "per_rank" in problem
    many = difference(*[OTHER] * 20, *[ONE] * 10)
    assert many is not None
    assert "20, 21, 22, 23, 24, 25, 26, 27, ... not those of rank 0" in many


@given(st.data())
@settings(deadline=None)
def test_any_cut_into_blocks_is_exact_and_moving_one_is_found(data: st.DataObject) -> None:
    rows, columns = data.draw(st.integers(1, 8)), data.draw(st.integers(1, 8))
    row_cuts = sorted(data.draw(st.sets(st.integers(1, rows))) | {0, rows})
    blocks = []
    for low, high in itertools.pairwise(row_cuts):
        cuts = sorted(data.draw(st.sets(st.integers(1, columns))) | {0, columns})
        blocks += [
            piece((low, left), (high - low, right - left), (rows, columns))
            for left, right in itertools.pairwise(cuts)
        ]
    blocks = data.draw(st.permutations(blocks))
    assert problem_of([manifest(item) for item in blocks]) is None
    twice = data.draw(st.sampled_from(blocks))
    same = [item for item in blocks if item is not twice and item.shape == twice.shape]
    if same:
        blocks = [same[0] if item is twice else item for item in blocks]
        assert problem_of([manifest(item) for item in blocks]) is not None


@pytest.mark.parametrize(
    ("given_manifest", "says"),
    [
        (manifest(rank=1), "reported were"),
        (manifest().model_copy(update={"step": 21}), "reported were"),
        (manifest(size_bytes=99), "size or digest"),
    ],
)
def test_a_manifest_must_say_what_was_reported(given_manifest: RankManifest, says: str) -> None:
    problem = manifest_problem(given_manifest, part(0))
    assert problem is not None
    assert says in problem


@pytest.mark.parametrize(
    ("tensors", "says"),
    [
        ((piece((0, 0), (1, 1), offset=2),), "past the end"),
        ((piece((0, 0), (1, 1)), piece((0, 1), (1, 1), offset=1)), "overlaps"),
        ((piece((0, 0), (1, 1), dtype="int4"),), "not known"),
        ((piece((0, 0), (1, 1), dtype="float64"),), "do not fit"),
    ],
)
def test_slices_must_lie_within_their_file(tensors: tuple[TensorSlice, ...], says: str) -> None:
    written = part(0)
    found = manifest(*tensors).model_copy(
        update={"shard": written.shards[0].model_copy(update={"key": shard_name(0)})}
    )
    problem = manifest_problem(found, written)
    assert problem is not None
    assert says in problem


def test_slices_that_no_line_separates_are_compared_one_by_one() -> None:
    """A pinwheel: four slices around a fifth."""
    wheel = [
        ((0, 0), (1, 2)),
        ((0, 2), (2, 1)),
        ((2, 1), (1, 2)),
        ((1, 0), (2, 1)),
        ((1, 1), (1, 1)),
    ]
    pieces = [piece(start, shape, (3, 3)) for start, shape in wheel]
    assert problem_of([manifest(*pieces)]) is None
    moved = [*pieces[:4], piece((1, 0), (1, 1), (3, 3))]
    assert problem_of([manifest(*moved)]) == "tensor w: two slices overlap"


@pytest.mark.parametrize("turned", [False, True])
def test_a_large_mesh_is_checked_whichever_dimension_is_cut_more(turned: bool) -> None:
    cut = (2, 2048)
    starts = [(row, column) for row in range(cut[0]) for column in range(cut[1])]
    pieces = [
        piece(start[::-1] if turned else start, (1, 1), cut[::-1] if turned else cut)
        for start in starts
    ]
    assert problem_of([manifest(*pieces)]) is None


def spiral(turns: int) -> list[TensorSlice]:
    """Each slice is one edge of what is left, so that each look takes one of them away."""
    found = []
    for low in range(turns):
        high = 2 * turns - low
        size = high - low
        found += [
            ((low, low), (1, size)),
            ((low + 1, high - 1), (size - 1, 1)),
            ((high - 1, low), (1, size - 1)),
            ((low + 1, low), (size - 2, 1)),
        ]
    whole = (2 * turns, 2 * turns)
    return [piece(start, shape, whole) for start, shape in found if math.prod(shape)]


def test_a_cut_that_would_take_hours_to_check_is_refused() -> None:
    assert problem_of([manifest(*spiral(50))]) is None
    problem = problem_of([manifest(*spiral(1000))])
    assert problem == "tensor w: its slices are cut in a way that takes too long to check"


def test_manifests_of_1024_ranks_cost_little_memory() -> None:
    """Their names and shapes are kept once: a slice costs its place, not a model of it."""
    ranks, names = 1024, [f"model.layers.{at}.feed_forward.w1.weight" for at in range(8)]
    pieces, held = Pieces(), []
    tracemalloc.start()
    try:
        for rank in range(ranks):
            slices = [
                piece((rank, 0), (1, 4), whole=(ranks, 4)).model_copy(update={"name": name})
                for name in names
            ]
            held.append(pieces.of(slices))
        del slices
        memory, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert memory < 150 * ranks * len(names)
    assert coverage_problem(held) is None
    assert coverage_problem(held[1:]) is not None
