"""How many queries of one user run at once; the others wait for their turn.

A dashboard asks for twenty panels at once, so a query too many waits rather than fails. It waits
without a thread: however many wait, other users' queries find one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field


class TooManyOfUser(Exception):
    """More queries of one user wait than may."""


@dataclass(slots=True)
class _Turns:
    free: asyncio.Semaphore
    asked: int = 0


@dataclass
class QueryTurns:
    """`at_once` queries of a user run, `waiting` more wait. Used from one event loop."""

    at_once: int = 4
    waiting: int = 100
    _users: dict[str, _Turns] = field(default_factory=dict)

    @asynccontextmanager
    async def of(self, user: str) -> AsyncIterator[None]:
        """One query's turn, in the order of their coming. Raises TooManyOfUser."""
        turns = self._users.setdefault(user, _Turns(asyncio.Semaphore(self.at_once)))
        if turns.asked >= self.at_once + self.waiting:
            raise TooManyOfUser(
                f"{self.waiting} queries of your token wait already; ask again when some are done"
            )
        turns.asked += 1
        try:
            async with turns.free:
                yield
        finally:
            turns.asked -= 1
            if not turns.asked:
                self._users.pop(user, None)
