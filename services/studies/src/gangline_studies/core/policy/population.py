"""Population-based training: which trials are replaced, and by which (Jaderberg et al., 2017)."""

from __future__ import annotations

from collections.abc import Sequence

from gangline_studies.core.state import Ranked


def quantiles(held: Sequence[Ranked], quantile: float) -> tuple[list[int], list[int]]:
    """The numbers of the best and of the worst members, as many of each. `held` is sorted."""
    count = int(len(held) * quantile)
    best, worst = held[:count], held[len(held) - count :]
    return [number for _, number in best], [number for _, number in worst]
