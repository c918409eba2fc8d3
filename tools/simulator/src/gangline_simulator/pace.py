"""When the simulated scheduler ticks."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any


@dataclass(frozen=True, slots=True)
class Pace:
    """`every_s`: at the multiples of this, while a job waits; None: at each change.

    With `only_changes` a multiple at which nothing has changed since the last tick is left out,
    unless `next_change` says that the order itself will have changed by then.
    """

    every_s: float | None = None
    only_changes: bool = True
    next_change: Callable[[Any, datetime], datetime | None] | None = None

    def now(self, now_s: float, changed: bool) -> bool:  # noqa: FBT001
        """Whether to tick at this moment, in which something changed or not."""
        if self.every_s is None:
            return changed
        return now_s % self.every_s == 0

    def due(
        self,
        now_s: float,
        changed: bool,  # noqa: FBT001
        next_change_s: Callable[[], float | None],
        more_to_come: bool,  # noqa: FBT001
    ) -> float | None:
        """The next moment that needs a tick, if nothing else happens; None: none does.

        `more_to_come`: there are ends or arrivals ahead. Without them only a tick can help.
        """
        if self.every_s is None:
            return None
        following_s = (math.floor(now_s / self.every_s) + 1) * self.every_s
        if changed or not self.only_changes:
            return following_s if changed or more_to_come else None
        at_s = next_change_s()
        if at_s is None:
            return None
        return max(following_s, math.ceil(at_s / self.every_s) * self.every_s)
