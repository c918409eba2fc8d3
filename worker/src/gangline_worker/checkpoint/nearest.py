"""Whose files of a checkpoint hold what a rank needs, where FSDP cuts tensors by whole rows."""

from __future__ import annotations

from collections.abc import Collection


def resumes_from(rank: int, saved: int) -> int:
    """Of the `saved` ranks that saved, the one whose state a rank takes: its own, or rank 0."""
    return rank if rank < saved else 0


def whose(ranks: range, world_size: int, saved: int) -> range:
    """Of the ranks that saved, those at the place of these ranks of `world_size` now."""
    return range(ranks.start * saved // world_size, -(-ranks.stop * saved // world_size))


def rows_of(ranks: range, of: int, world_size: int) -> range:
    """Which of a tensor's `of` rows these ranks hold.

    Each has as many whole rows, and the last ones what is left: fewer, or none.
    """
    each = -(-of // world_size)
    return range(min(of, ranks.start * each), min(of, ranks.stop * each))


def holders(rows: range, of: int, saved: int) -> range:
    """Of the ranks that saved, those that held these of a tensor's `of` rows."""
    each = -(-of // saved)
    return range(rows.start // each, -(-rows.stop // each)) if rows else range(0)


def nearest(rank: int, world_size: int, saved: int, likely: Collection[int] = ()) -> list[int]:
    """All that saved, in the order in which a rank looks into their files.

    First its own, if as many saved as there are now; then the `likely` ones.
    """
    place = whose(range(rank, rank + 1), world_size, saved)

    def order(other: int) -> tuple[bool, bool, int]:
        own = world_size == saved and other == rank
        away = max(place.start - other, other - place[-1], 0)
        return not own, other not in likely, away

    return sorted(range(saved), key=order)
