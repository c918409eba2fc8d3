"""The evaluation points of a trial, as its rank 0 reports them."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Mapping
from typing import Final, SupportsIndex

from gangline_schemas.rank_protocol import TrialPoint
from gangline_worker.columns import figure, whole_step

POINTS_KEPT: Final = 100
"""Between two flushes; the oldest go first."""


class TrialPoints:
    """Those that were not sent yet. `saw` and `take` may be called from two threads."""

    def __init__(self, metrics: Collection[str] = ()) -> None:
        """`metrics`: the names that decide; none: this process is not the rank 0 of a trial."""
        self._metrics = frozenset(metrics)
        self._seen: deque[tuple[SupportsIndex, dict[str, float]]] = deque(maxlen=POINTS_KEPT)

    def saw(self, step: SupportsIndex, metrics: Mapping[str, float]) -> None:
        """Note a step's metrics, if one of them decides."""
        if self._metrics and not self._metrics.isdisjoint(metrics):
            found = {name: metrics[name] for name in self._metrics if name in metrics}
            self._seen.append((step, found))

    def take(self) -> Iterator[TrialPoint]:
        """All that were noted; a value that is not a finite number is None."""
        while self._seen:
            given, found = self._seen.popleft()
            step = whole_step(given)
            if step is not None:
                values = {name: figure(value) for name, value in found.items()}
                yield TrialPoint(step=step, values=values)
