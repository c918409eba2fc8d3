"""State queries: other threads read a running decider's state between two cycles.

Only the loop's thread touches the state, so it runs `take` itself. `take` must be short, such as a
fork of the state, and its result must not change afterwards. The caller works on the result.
"""

from __future__ import annotations

import queue
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any, Generic, TypeVar, cast

StateT = TypeVar("StateT")
SeenT = TypeVar("SeenT")


class StandsByError(Exception):
    """This process leads no shard; another one knows."""


class NoLookError(Exception):
    """The loop did not come by in time."""


class Asked(Generic[StateT]):
    """Between askers in any thread and one loop."""

    def __init__(self) -> None:
        self._waiting: queue.SimpleQueue[tuple[Callable[[StateT], Any], Future[Any]]] = (
            queue.SimpleQueue()
        )

    def look(self, take: Callable[[StateT], SeenT], timeout_s: float) -> SeenT:
        """The result of `take` on the state after the current cycle, or its exception.

        Raises StandsByError, and NoLookError after `timeout_s`.
        """
        seen: Future[Any] = Future()
        self._waiting.put((take, seen))
        try:
            return cast("SeenT", seen.result(timeout_s))
        except FutureTimeoutError:
            seen.cancel()
            raise NoLookError(f"the decider did not answer within {timeout_s:g} s") from None

    def answer(self, state: StateT | None) -> None:
        """Let all that wait look; None when this process leads nothing. The loop calls it."""
        while not self._waiting.empty():
            take, seen = self._waiting.get()
            if not seen.set_running_or_notify_cancel():
                continue
            try:
                if state is None:
                    raise StandsByError("this process stands by")
                seen.set_result(take(state))
            except Exception as error:  # noqa: BLE001  (the asker's, never the loop's)
                seen.set_exception(error)
