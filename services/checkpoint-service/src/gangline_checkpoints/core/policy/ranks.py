"""Sets of ranks as runs, each its first and last rank: what 1,024 of them take is one pair."""

from __future__ import annotations

from collections.abc import Iterable

Runs = tuple[tuple[int, int], ...]


def runs_of(ranks: Iterable[int]) -> Runs:
    """These ranks in order."""
    found: list[tuple[int, int]] = []
    for rank in sorted(set(ranks)):
        if found and found[-1][1] == rank - 1:
            found[-1] = (found[-1][0], rank)
        else:
            found.append((rank, rank))
    return tuple(found)


def joined(*several: Runs) -> Runs:
    """All ranks that are in any of them. Cost: O(runs log runs)."""
    found: list[tuple[int, int]] = []
    for first, last in sorted(run for runs in several for run in runs):
        if found and first <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(last, found[-1][1]))
        else:
            found.append((first, last))
    return tuple(found)


def holds(runs: Iterable[tuple[int, int]], rank: int) -> bool:
    """Whether the rank is among them."""
    return any(first <= rank <= last for first, last in runs)
