"""Whether slices of one tensor overlap, with few comparisons for each.

1. Along one dimension the slices fall into groups that do not touch each other there.
2. Each group is split along the next dimension, and so on, until every group is one slice.
3. Slices that no dimension separates are compared pair by pair.

The cuts that trainers make are grids, which step 2 takes apart: O(n log n) for each dimension. A
layout that needs more comparisons than that (`LOOKS` for each slice) is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from operator import itemgetter

from gangline_checkpoints.core.policy.pieces import Piece

LOOKS = 256
"""So many looks at each slice are enough for any grid of 64 dimensions."""
FEW = 1000
"""So many looks are always allowed."""


def overlap_problem(pieces: Sequence[Piece]) -> str | None:
    """Why slices that are not empty, of equally many dimensions, are no partition; None: they are.

    Cost: at most `LOOKS` for each slice.
    """
    left = LOOKS * len(pieces) + FEW
    groups = [(0, list(pieces))]
    while groups:
        tried, group = groups.pop()
        if len(group) == 1:
            continue
        dimensions = len(group[0].shape)
        left -= len(group)
        if tried == dimensions:
            left -= len(group) * (len(group) - 1) // 2
        if left < 0:
            return "its slices are cut in a way that takes too long to check"
        if tried == dimensions:
            if any(_meet(one, other) for one, other in combinations(group, 2)):
                return "two slices overlap"
            continue
        apart = _apart(group, tried)
        groups += [(0 if len(apart) > 1 else tried + 1, part) for part in apart]
    return None


def _apart(group: list[Piece], dimension: int) -> list[list[Piece]]:
    """Groups that do not touch each other along a dimension, in order."""
    ends = [(piece.start[dimension], at) for at, piece in enumerate(group)]
    ends.sort(key=itemgetter(0))
    found: list[list[Piece]] = []
    reached = -1
    for start, at in ends:
        piece = group[at]
        if start >= reached:
            found.append([])
        found[-1].append(piece)
        reached = max(reached, start + piece.shape[dimension])
    return found


def _meet(one: Piece, other: Piece) -> bool:
    return all(
        a < b + b_count and b < a + a_count
        for a, a_count, b, b_count in zip(
            one.start, one.shape, other.start, other.shape, strict=True
        )
    )
