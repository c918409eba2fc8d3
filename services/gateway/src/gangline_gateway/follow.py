"""Follows topics from a position: older records from the bus, then new ones from the rings.

Reads of old records from the bus are limited in total and per user. A reader is closed if its
client does not take a batch within `TAKE_S`.

A follower that falls behind the rings gets an event `dropped` and is closed. Its client can
connect again with its cursor. No records are queued per client.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, aclosing, contextmanager
from dataclasses import dataclass

from gangline_bus.ports import Record, TopicPartition
from gangline_gateway.problems import unavailable
from gangline_gateway.tail import Behind, Tail
from gangline_gateway.user_limits import UserSlots, current_user

HEARTBEAT_S = 10.0
CATCH_UPS_AT_ONCE = 8
CATCH_UPS_PER_USER = 2
TAKE_S = 5.0
_BATCH = 500


@dataclass(frozen=True, slots=True)
class Batch:
    """Records that matched, and the positions after them; no records: a keep-alive.

    `current`: all records that the tail had read are delivered.
    """

    records: list[Record]
    positions: dict[TopicPartition, int]
    current: bool


class TooSlow(Exception):
    """The follower fell behind the rings."""


class Followers:
    """Makes followers and limits how many read old records from the bus at once."""

    def __init__(self, tail: Tail, take_s: float = TAKE_S) -> None:
        self.tail = tail
        self.heartbeat_s = HEARTBEAT_S
        self._take_s = take_s
        self._catching_up = 0
        self._users = UserSlots(CATCH_UPS_PER_USER, "streams from old events")
        self._threads = ThreadPoolExecutor(CATCH_UPS_AT_ONCE, thread_name_prefix="catch-up")

    async def follow(
        self,
        positions: Mapping[TopicPartition, int],
        matches: Callable[[Record], bool],
        beat_s: float,
    ) -> AsyncGenerator[Batch, None]:
        """Batches without end, at least one each `beat_s` once it is current. Raises TooSlow."""
        at = dict(positions)
        starts = self.tail.starts(list(at))
        if any(at[place] < starts[place] for place in at):
            async with aclosing(self._catch_up(at, matches)) as old:
                async for batch in old:
                    at = batch.positions
                    yield batch
        loop = asyncio.get_running_loop()
        sent_s = loop.time()
        while True:
            news = self.tail.news()
            try:
                records, at = self.tail.read(at, _BATCH)
            except Behind:
                raise TooSlow from None
            matched = [record for record in records if matches(record)]
            current = len(records) < _BATCH
            if matched or (current and loop.time() - sent_s >= beat_s):
                sent_s = loop.time()
                yield Batch(matched, at, current)
            if current:
                await asyncio.wait([news], timeout=beat_s)

    async def _catch_up(
        self, at: dict[TopicPartition, int], matches: Callable[[Record], bool]
    ) -> AsyncGenerator[Batch, None]:
        """Reads from the bus until the rings have the rest. Raises TooSlow and problems."""
        loop = asyncio.get_running_loop()
        with self._old_records() as place:
            reader = await loop.run_in_executor(self._threads, self.tail.bus.reader, "catch-up")
            place.callback(self._threads.submit, reader.close)
            await loop.run_in_executor(self._threads, reader.assign, at)
            while True:
                poll = loop.run_in_executor(self._threads, reader.poll, _BATCH, 0.5)
                records = await poll
                at = reader.positions()
                late = loop.call_later(self._take_s, place.close)
                yield Batch([record for record in records if matches(record)], at, current=False)
                if place.closed:
                    raise TooSlow
                late.cancel()
                starts = self.tail.starts(list(at))
                if all(at[at_place] >= starts[at_place] for at_place in at):
                    return

    @contextmanager
    def _old_records(self) -> Iterator[_Place]:
        """A slot for reading from the bus, until the block ends or the slot is closed."""
        user = current_user.get()
        if self._catching_up >= CATCH_UPS_AT_ONCE:
            raise unavailable("busy", "too many clients read old events; try again")
        self._users.take(user)
        self._catching_up += 1
        with _Place() as place:
            place.callback(self._leave, user)
            yield place

    def _leave(self, user: str) -> None:
        self._catching_up -= 1
        self._users.free(user)


class _Place(ExitStack):
    """A slot that is given back once."""

    closed = False

    def close(self) -> None:
        """Gives the slot back now."""
        self.closed = True
        super().close()
