"""Whose files of a checkpoint hold what a rank needs, where tensors are cut evenly among ranks."""

from __future__ import annotations


def whose(ranks: range, world_size: int, saved: int) -> range:
    """Of the `saved` ranks that saved, those that held what these ranks of `world_size` hold now.

    A guess: rows are cut by whole ones, so a small tensor's may lie with ranks beside them.
    """
    return range(ranks.start * saved // world_size, -(-ranks.stop * saved // world_size))


def nearest(rank: int, world_size: int, saved: int) -> list[int]:
    """All that saved, in the order in which a rank looks into their files."""
    likely = whose(range(rank, rank + 1), world_size, saved)

    def away(other: int) -> int:
        return max(likely.start - other, other - likely[-1], 0)

    return sorted(range(saved), key=away)
