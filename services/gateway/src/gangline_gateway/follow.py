"""Following topics from a position on: first from the bus what is older, then from the rings.

A follower that cannot keep up with the rings (a client that reads too slowly) is told so and
dropped; it may come again with its cursor. Nothing is queued per client.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass

from gangline_bus.ports import Reader, Record, TopicPartition
from gangline_gateway.problems import unavailable
from gangline_gateway.tail import Behind, Tail

HEARTBEAT_S = 10.0
CATCH_UPS_AT_ONCE = 8
_BATCH = 500


@dataclass(frozen=True, slots=True)
class Batch:
    """Records that matched, and the positions after them; no records: a sign of life.

    `current`: everything that the tail had read is delivered.
    """

    records: list[Record]
    positions: dict[TopicPartition, int]
    current: bool


class TooSlow(Exception):
    """The follower fell behind the rings."""


class Followers:
    """Makes followers; bounds how many read old records from the bus at the same time."""

    def __init__(self, tail: Tail, heartbeat_s: float = HEARTBEAT_S) -> None:
        self.tail = tail
        self.heartbeat_s = heartbeat_s
        self._catching_up = 0

    async def follow(
        self,
        positions: Mapping[TopicPartition, int],
        matches: Callable[[Record], bool],
        beat_s: float,
    ) -> AsyncGenerator[Batch, None]:
        """Batches for ever, at least one each `beat_s` once it is current. Raises TooSlow."""
        at = dict(positions)
        starts = self.tail.starts(list(at))
        if any(at[place] < starts[place] for place in at):
            async with aclosing(self._catch_up(at, matches)) as old:
                async for batch in old:
                    at = batch.positions
                    yield batch
        loop = asyncio.get_running_loop()
        said = loop.time()
        while True:
            news = self.tail.news()
            try:
                records, at = self.tail.read(at, _BATCH)
            except Behind:
                raise TooSlow from None
            matched = [record for record in records if matches(record)]
            current = len(records) < _BATCH
            if matched or (current and loop.time() - said >= beat_s):
                said = loop.time()
                yield Batch(matched, at, current)
            if current:
                await asyncio.wait([news], timeout=beat_s)

    async def _catch_up(
        self, at: dict[TopicPartition, int], matches: Callable[[Record], bool]
    ) -> AsyncGenerator[Batch, None]:
        """Read from the bus until the rings have the rest."""
        if self._catching_up >= CATCH_UPS_AT_ONCE:
            raise unavailable("busy", "too many clients read old events; try again")
        self._catching_up += 1
        reader: Reader | None = None
        try:
            reader = await asyncio.to_thread(self.tail.bus.reader, "catch-up")
            await asyncio.to_thread(reader.assign, at)
            while True:
                records = await asyncio.to_thread(reader.poll, _BATCH, 0.5)
                at = reader.positions()
                yield Batch([record for record in records if matches(record)], at, current=False)
                starts = self.tail.starts(list(at))
                if all(at[place] >= starts[place] for place in at):
                    return
        finally:
            self._catching_up -= 1
            if reader is not None:
                await asyncio.to_thread(reader.close)
