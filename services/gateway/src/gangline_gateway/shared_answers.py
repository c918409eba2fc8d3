"""One answer for all callers of about the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from starlette.concurrency import run_in_threadpool

ValueT = TypeVar("ValueT")


class SharedAnswers:
    """Values that cost much. Belongs to one event loop.

    Each caller gets a value that was begun after its call, so it shows everything from before.
    Callers that come while one is being made share the next one: many of them cost two at most.
    """

    def __init__(self) -> None:
        self._running: dict[Hashable, asyncio.Task[Any]] = {}
        self._next: dict[Hashable, asyncio.Task[Any]] = {}

    async def get(self, key: Hashable, make: Callable[[], ValueT]) -> ValueT:
        """Run `make` in a thread, give its value or raise its error. Equal keys share it."""
        task: asyncio.Task[ValueT] | None = self._next.get(key)
        if task is None:
            running = self._running.get(key)
            task = asyncio.create_task(self._make(key, make, running))
            task.add_done_callback(_retrieved)
            (self._next if running is not None else self._running)[key] = task
        return await asyncio.shield(task)  # one that leaves does not end it for the others

    async def _make(
        self, key: Hashable, make: Callable[[], ValueT], before: asyncio.Task[Any] | None
    ) -> ValueT:
        if before is not None:
            await asyncio.wait([before])
            self._running[key] = self._next.pop(key)
        try:
            return await run_in_threadpool(make)
        finally:
            if key not in self._next:
                del self._running[key]


def _retrieved(task: asyncio.Task[Any]) -> None:
    """An error that no caller waits for any more is not reported as lost."""
    if not task.cancelled():
        task.exception()
