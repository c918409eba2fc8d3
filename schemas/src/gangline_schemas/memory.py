"""How long services remember what has ended: one rule and one length for all of them.

A job that ended, and a node that failed or left, is forgotten `REMEMBERED` after its end, by the
times of the service's own events. Quota is the last to forget the id of a job, so that an id that
it admits again is unknown to every other service.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from itertools import islice, takewhile
from typing import TypeVar

KeyT = TypeVar("KeyT")
ValueT = TypeVar("ValueT")

REMEMBERED = timedelta(days=30)
"""How long a service remembers what has ended."""

IDS_REMEMBERED = REMEMBERED + timedelta(days=1)
"""How long quota refuses the id of a job that has ended to another job."""


def keep_newest(entries: dict[KeyT, ValueT], most: int) -> None:
    """Remove the oldest entries, which come first, until there are `most`; cost: `forget_old`."""
    for key in [*islice(entries, max(0, len(entries) - most))]:
        del entries[key]


def forget_old(
    entries: dict[KeyT, ValueT],
    ended_at: Callable[[ValueT], datetime],
    now: datetime,
    remembered: timedelta = REMEMBERED,
) -> list[tuple[KeyT, ValueT]]:
    """Remove and return the entries that ended longer than `remembered` ago.

    `entries` are in the order of their ends. All are removed in one pass, because a dict passes
    over the places of removed entries until new ones make it move its entries. So a call costs the
    entries that it removes, and up to a few times those that stay: 20 us of 100,000 on average.
    """
    old = takewhile(lambda entry: now - ended_at(entry[1]) > remembered, entries.items())
    forgotten = [*old]
    for key, _ in forgotten:
        del entries[key]
    return forgotten
