"""Detects losses that are not finite, and that leap up, while every rank is well.

Both watches are pure: from the same losses all ranks conclude the same. Imports no torch.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from statistics import median

from gangline_schemas.failure_policy import OnSpike


class LostTrainingError(ArithmeticError):
    """Training is to go back to a checkpoint; `steps` are those in which that showed, if known."""

    def __init__(self, message: str, steps: range = range(0)) -> None:
        super().__init__(message)
        self.steps = steps


class NotFiniteError(LostTrainingError):
    """The loss or the gradient was not finite for more steps in a row than may be left out."""


class LossSpikeError(LostTrainingError):
    """The loss leapt up and stayed there, and the job is to start again from before it."""


class FiniteWatch:
    """Counts the steps in a row that were not finite; a step that is given twice counts once."""

    def __init__(self, skip: int) -> None:
        """`skip` such steps in a row are borne; one more raises."""
        self._skip = skip
        self._last: int | None = None
        self.in_a_row = 0

    def saw(self, step: int, *, finite: bool) -> bool:
        """Note how a step went; True when it is the first one that was not finite.

        Raises:
            NotFiniteError: it is one too many.
        """
        if finite:
            if step != self._last:
                self.in_a_row = 0
            return False
        if step == self._last:
            return False
        self._last = step
        self.in_a_row += 1
        if self.in_a_row > self._skip:
            times = f"for {self.in_a_row} steps in a row, the last" if self._skip else "in step"
            raise NotFiniteError(
                f"the loss or the gradient was not finite {times} {step}; "
                f"training.on_nan.skip is {self._skip}",
                range(step - self._skip, step + 1),
            )
        return self.in_a_row == 1


@dataclass(frozen=True, slots=True)
class Spike:
    """Losses that were out of line from step `first` to step `last`."""

    first: int
    last: int
    loss: float
    limit: float
    usual: float
    window: int

    def describe(self) -> str:
        """One sentence."""
        return (
            f"the loss was above {self.limit:.4g} from step {self.first} to {self.last}, where it "
            f"is {self.loss:.4g}; the median of the {self.window} before is {self.usual:.4g}"
        )


class SpikeWatch:
    """Finds losses above `median + deviations x MAD` of the last `window`, `steps` in a row.

    The window leaves out a loss that is out of line. After a reported spike the window starts
    from scratch, so that a new level is reported once. Cost: O(window) a step, a few microseconds.
    """

    def __init__(self, policy: OnSpike) -> None:
        self._policy = policy
        self._window: deque[float] = deque(maxlen=policy.window)
        self._first = 0
        self._in_a_row = 0

    @property
    def suspicious(self) -> bool:
        """Whether the last loss was out of line."""
        return self._in_a_row > 0

    def saw(self, step: int, loss: float) -> Spike | None:
        """Note a step's loss; a spike when it is one. Losses that are not finite are left out."""
        if not math.isfinite(loss):
            return None
        window = self._window
        usual, limit = 0.0, math.inf
        if len(window) == self._policy.window and loss > max(window):
            usual = median(window)
            spread = median(abs(value - usual) for value in window)
            limit = usual + self._policy.deviations * spread
        if loss <= limit:
            self._in_a_row = 0
            window.append(loss)
            return None
        if not self._in_a_row:
            self._first = step
        self._in_a_row += 1
        if self._in_a_row < self._policy.steps:
            return None
        self._in_a_row = 0
        window.clear()
        return Spike(self._first, step, loss, limit, usual, self._policy.window)
