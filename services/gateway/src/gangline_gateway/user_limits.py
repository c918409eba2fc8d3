"""Limits per user; a request above them gets 429 with Retry-After.

A user is a token's name. Requests are limited by rate (token bucket) and by the number that run at
once. Event streams, uploads and readers of old events are limited by number.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from gangline_gateway.problems import ProblemError, too_many, unavailable

_USERS_LOOKED_AT = 1000
REQUEST_BYTES = 4096
"""So many bytes of a JSON body count as one request more."""
current_user: ContextVar[str] = ContextVar("current_user", default="")
"""The user of the current request, in its tasks and threads."""


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """A user's limits of requests: per second, in one burst, and running at once."""

    per_s: float = 100.0
    burst: int = 300
    at_once: int = 32


class RequestRates:
    """Counts each user's requests. Belongs to one event loop."""

    def __init__(
        self, limits: RequestLimits | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._limits = limits or RequestLimits()
        self._clock = clock
        self._left: dict[str, tuple[float, float]] = {}
        self._running: Counter[str] = Counter()
        self._look_at = _USERS_LOOKED_AT

    def __len__(self) -> int:
        """The number of users that are remembered."""
        return len(self._left)

    def begin(self, user: str) -> None:
        """Counts a request; `end` must follow. Raises a 429 problem."""
        limits, now_s = self._limits, self._clock()
        left, seen_s = self._left.get(user, (float(limits.burst), now_s))
        left = min(float(limits.burst), left + (now_s - seen_s) * limits.per_s)
        self._left[user] = (left, now_s)
        if len(self._left) >= self._look_at:
            self._forget(now_s)
        if left < 1:
            wait_s = (1 - left) / limits.per_s
            raise too_many(f"{limits.per_s:g} requests a second", math.ceil(wait_s))
        if self._running[user] >= limits.at_once:
            raise too_many(f"{limits.at_once} requests at once", 1)
        self._left[user] = (left - 1, now_s)
        self._running[user] += 1

    def count(self, user: str) -> None:
        """Counts a request that is over at once. Raises a 429 problem."""
        self.begin(user)
        self.end(user)

    def charge(self, user: str, size_bytes: int) -> None:
        """A part of a body came: to read it costs as much as further requests, up to a burst."""
        left, seen_s = self._left.get(user, (float(self._limits.burst), self._clock()))
        least = -float(self._limits.burst)
        self._left[user] = (max(least, left - size_bytes / REQUEST_BYTES), seen_s)

    def end(self, user: str) -> None:
        """The request is answered, or became a stream."""
        self._running[user] -= 1
        if not self._running[user]:
            del self._running[user]

    def _forget(self, now_s: float) -> None:
        """Drop those who may send a whole burst again: each job is a user, and jobs end."""
        limits = self._limits
        full_s = limits.burst / limits.per_s
        self._left = {
            user: (left, seen_s)
            for user, (left, seen_s) in self._left.items()
            if now_s - seen_s < full_s
        }
        self._look_at = max(_USERS_LOOKED_AT, 2 * len(self._left))


class SharedSlots:
    """At most `in_all` and `per_user` questions that hold a thread: other routes need threads."""

    def __init__(self, in_all: int, per_user: int, what: str, *, code: str = "busy") -> None:
        """`code`: of the 503 problem."""
        self._places = threading.BoundedSemaphore(in_all)
        self._users = UserSlots(per_user, what)
        self._what, self._code = what, code

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Holds a place for the current user. Raises a 429 or 503 problem at once."""
        with self._users.hold(current_user.get()):
            if not self._places.acquire(blocking=False):
                raise self.busy()
            try:
                yield
            finally:
                self._places.release()

    def busy(self) -> ProblemError:
        """The 503 problem of a question that finds no place."""
        return unavailable(self._code, f"too many {self._what} are running; try again")


class UserSlots:
    """At most `per_user` slots for each user. May be used from any thread."""

    def __init__(self, per_user: int, what: str) -> None:
        self._per_user = per_user
        self._what = what
        self._held: Counter[str] = Counter()
        self._lock = threading.Lock()

    @contextmanager
    def hold(self, user: str) -> Iterator[None]:
        """Holds a slot during the block. Raises a 429 problem."""
        self.take(user)
        try:
            yield
        finally:
            self.free(user)

    def take(self, user: str) -> None:
        """Takes a slot until `free`. Raises a 429 problem if the user has no free slot."""
        with self._lock:
            if self._held[user] >= self._per_user:
                raise too_many(f"{self._per_user} {self._what} at once", 2)
            self._held[user] += 1

    def free(self, user: str) -> None:
        """Gives a slot back."""
        with self._lock:
            self._held[user] -= 1
            if not self._held[user]:
                del self._held[user]
