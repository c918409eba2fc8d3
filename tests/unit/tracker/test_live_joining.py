"""A reader that never joins its group ends the process, and the next one tries again."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from gangline_bus.ports import BusUnavailable
from gangline_tracker.live import joined, run_alone


class Stream:
    """Joins after a while, or never."""

    def __init__(self, *, joins: bool) -> None:
        self.joins = joins

    async def start(self) -> None:
        if not self.joins:
            await asyncio.Event().wait()


def test_a_stream_that_does_not_join_its_group_is_given_up() -> None:
    lost: Any = Stream(joins=False)
    with pytest.raises(BusUnavailable, match="not joined in time"):
        asyncio.run(joined(lost, within_s=0.01))
    found: Any = Stream(joins=True)
    asyncio.run(joined(found))


def test_a_task_that_does_not_end_does_not_hold_the_process() -> None:
    held = [True]

    async def stays() -> None:
        while held:  # as a task of faust that waits for a group it never joined
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(3600)

    async def life() -> int:
        tasks.append(asyncio.create_task(stays()))
        await asyncio.sleep(0)
        raise BusUnavailable("not joined")

    tasks: list[asyncio.Task[None]] = []
    with pytest.raises(BusUnavailable):
        run_alone(life())
    (task,) = tasks
    assert not task.done()
    held.clear()
    task.cancel()
    task.get_loop().run_until_complete(task)
    task.get_loop().close()
