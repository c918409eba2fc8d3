"""Waiting for a store that is away: bounded, and each try visible in the log."""

import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self, TypeVar

import structlog

from gangline_storage.errors import StoreUnavailable

T = TypeVar("T")
_log = structlog.get_logger("gangline.storage")
_MANY = 1000


class TransientError(Exception):
    """A failure that may pass; `reason` is one line without secrets."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Retry:
    """How often and how long to try again: delays double from the first to the longest.

    Half of each delay is random, so that many clients do not come back in step. No try begins later
    than `within_s` after the first; one that the server never answers takes as long as it may.
    """

    attempts: int = 5
    first_delay_s: float = 0.2
    longest_delay_s: float = 5.0
    within_s: float = math.inf
    clock: Callable[[], float] = field(default=time.monotonic, repr=False, compare=False)
    sleep: Callable[[float], None] = field(default=time.sleep, repr=False, compare=False)

    def run(self, what: str, attempt_once: Callable[[int], T]) -> T:
        """Call `attempt_once(n)`, n = 0, 1, ..., until it does not raise TransientError.

        Raises StoreUnavailable, with the last reason, after `attempts` tries or `within_s`.
        """
        ends_s = self.clock() + self.within_s
        for attempt in range(self.attempts):
            try:
                return attempt_once(attempt)
            except TransientError as failure:
                last = failure
            if attempt + 1 < self.attempts:
                delay_s = self._delay_s(attempt)
                if self.clock() + delay_s > ends_s:
                    break
                _log.warning(
                    "store.retry",
                    what=what,
                    reason=last.reason,
                    attempt=attempt + 1,
                    of=self.attempts,
                    delay_s=round(delay_s, 3),
                )
                self.sleep(delay_s)
        raise StoreUnavailable(
            f"{what}: the store failed {attempt + 1} times, the last time: {last.reason}"
        ) from last

    @classmethod
    def within(cls, seconds: float) -> Self:
        """As often as can be in that time."""
        return cls(attempts=_MANY, within_s=seconds)

    def _delay_s(self, attempt: int) -> float:
        longest_s = min(self.longest_delay_s, self.first_delay_s * 2.0**attempt)
        return longest_s * random.uniform(0.5, 1.0)  # noqa: S311 - spreads load, guards nothing
