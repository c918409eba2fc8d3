"""A user's queries beyond a few wait for their turn, and others do not wait for them."""

from __future__ import annotations

import asyncio

import pytest

from gangline_tracker.query_turns import QueryTurns, TooManyOfUser


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def test_queries_beyond_the_limit_wait_in_order_and_then_run() -> None:
    async def story() -> list[int]:
        turns, done, go = QueryTurns(at_once=2, waiting=3), [], asyncio.Event()

        async def query(number: int) -> None:
            async with turns.of("grafana"):
                await go.wait()
                done.append(number)

        tasks = [asyncio.create_task(query(number)) for number in range(5)]
        await settle()
        with pytest.raises(TooManyOfUser, match="3 queries of your token wait already"):
            async with turns.of("grafana"):
                pass
        async with turns.of("ada"):
            assert not done
        go.set()
        await asyncio.gather(*tasks)
        async with turns.of("grafana"):
            pass
        return done

    assert asyncio.run(story()) == [0, 1, 2, 3, 4]


def test_a_query_that_is_given_up_while_it_waits_leaves_its_place() -> None:
    async def story() -> None:
        turns = QueryTurns(at_once=1, waiting=1)

        async def query() -> None:
            async with turns.of("ada"):
                await asyncio.Event().wait()

        running, waiting = asyncio.create_task(query()), asyncio.create_task(query())
        await settle()
        waiting.cancel()
        await settle()
        running.cancel()
        await settle()
        async with asyncio.timeout(5), turns.of("ada"):
            pass

    asyncio.run(story())
