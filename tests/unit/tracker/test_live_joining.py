"""A reader that never joins its group ends the process, and the next one tries again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gangline_bus.ports import BusUnavailable
from gangline_tracker.live import joined


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
