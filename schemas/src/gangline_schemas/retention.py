"""Why a job's committed checkpoints are retained: the rules of `checkpoint.keep`, as one function.

The checkpoint service deletes by it, and lists of checkpoints give its reason for each.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, Protocol

from gangline_schemas.checkpoint_policy import Retention

Why = Literal["latest", "best", "every", "promoted", "pinned"]
Place = tuple[int, int]
"""Attempt and step; a later attempt is always newer."""


class Stored(Protocol):
    """The facts that the rules read."""

    @property
    def attempt(self) -> int:
        """The attempt that saved it."""

    @property
    def step(self) -> int:
        """The step that it was saved after."""

    @property
    def metrics(self) -> Mapping[str, float]:
        """The metrics that were reported with it."""

    @property
    def promoted(self) -> bool:
        """Whether it was validated."""

    @property
    def pinned(self) -> bool:
        """Whether a user wants it kept."""


def reasons(healthy: Sequence[Stored], keep: Retention) -> dict[Place, tuple[Why, ...]]:
    """Which of these, oldest first, the rules keep, and by which of them.

    - latest: one of the `keep.latest` newest; the newest one always is.
    - best: it is best by the metric of `keep.best`; of equally good ones the newest.
    - every: the first one of each `keep.every` steps, but of the first so many; of two attempts
      that saved at the same step the newer one's.
    - promoted: it is the newest that was validated.
    - pinned: a user wants it kept.
    """
    found: dict[Place, tuple[Why, ...]] = {}

    def keeps(items: Iterable[Stored], why: Why) -> None:
        for item in items:
            place = (item.attempt, item.step)
            found[place] = (*found.get(place, ()), why)

    keeps(healthy[-max(1, keep.latest) :], "latest")
    keeps(_best(healthy, keep), "best")
    keeps(_every(healthy, keep), "every")
    keeps([item for item in healthy if item.promoted][-1:], "promoted")
    keeps([item for item in healthy if item.pinned], "pinned")
    return found


def _best(healthy: Sequence[Stored], keep: Retention) -> list[Stored]:
    if keep.best is None:
        return []
    name, sign = keep.best.metric, 1 if keep.best.mode == "max" else -1
    measured = [item for item in healthy if name in item.metrics]
    if not measured:
        return []
    return [max(measured, key=lambda item: (sign * item.metrics[name], item.attempt, item.step))]


def _every(healthy: Sequence[Stored], keep: Retention) -> list[Stored]:
    if keep.every is None:
        return []
    first: dict[int, Stored] = {}
    for item in healthy:
        known = first.get(item.step // keep.every)
        if known is None or (item.step, -item.attempt) < (known.step, -known.attempt):
            first[item.step // keep.every] = item
    return [item for number, item in first.items() if number > 0]
