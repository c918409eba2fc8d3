"""Answers that callers share: when each was begun, errors, callers that leave."""

from __future__ import annotations

import asyncio
import threading

import pytest

from gangline_gateway.shared_answers import SharedAnswers


class Making:
    """Counts what was begun; each waits for its turn to end."""

    def __init__(self) -> None:
        self.begun = 0
        self.first = threading.Event()
        self._ends = threading.Semaphore(0)

    def __call__(self) -> int:
        self.begun += 1
        self.first.set()
        mine = self.begun
        assert self._ends.acquire(timeout=10)
        return mine

    def end(self, count: int) -> None:
        self._ends.release(count)


def test_callers_who_come_meanwhile_share_the_next_one() -> None:
    async def scenario() -> list[int]:
        shared, making = SharedAnswers(), Making()
        first = asyncio.create_task(shared.get("map", making))
        assert await asyncio.to_thread(making.first.wait, 10)
        later = [asyncio.create_task(shared.get("map", making)) for _ in range(50)]
        await asyncio.sleep(0)
        assert making.begun == 1
        making.end(2)
        return [await first, *[await each for each in later], making.begun]

    assert asyncio.run(scenario()) == [1, *[2] * 50, 2]


def test_a_caller_gets_nothing_that_was_begun_before_its_call() -> None:
    async def scenario() -> list[int]:
        shared, making = SharedAnswers(), Making()
        making.end(10)
        return [await shared.get("map", making) for _ in range(3)]

    assert asyncio.run(scenario()) == [1, 2, 3]


def test_keys_do_not_wait_for_each_other() -> None:
    async def scenario() -> str:
        shared, making = SharedAnswers(), Making()
        slow = asyncio.create_task(shared.get("one team", making))
        assert await asyncio.to_thread(making.first.wait, 10)
        found = await shared.get("another team", lambda: "here")
        making.end(1)
        await slow
        return found

    assert asyncio.run(scenario()) == "here"


def test_an_error_reaches_all_who_share_it_and_the_next_caller_gets_an_answer() -> None:
    def fail() -> int:
        raise ValueError("no view")

    async def scenario() -> int:
        shared = SharedAnswers()
        for _ in range(2):
            callers = [asyncio.create_task(shared.get("map", fail)) for _ in range(3)]
            for each in callers:
                with pytest.raises(ValueError, match="no view"):
                    await each
        return await shared.get("map", lambda: 7)

    assert asyncio.run(scenario()) == 7


def test_a_caller_that_leaves_leaves_the_answer_to_the_others() -> None:
    async def scenario() -> int:
        shared, making = SharedAnswers(), Making()
        leaves = asyncio.create_task(shared.get("map", making))
        assert await asyncio.to_thread(making.first.wait, 10)
        stays = asyncio.create_task(shared.get("map", making))
        await asyncio.sleep(0)
        leaves.cancel()
        making.end(2)
        return await stays

    assert asyncio.run(scenario()) == 2
