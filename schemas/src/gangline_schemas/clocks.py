"""Which clock counts for what a producer dates, and what a clock that was put back changes."""

from __future__ import annotations

from datetime import datetime, timedelta

MOST_OFF = timedelta(minutes=10)
"""An event that arrives later than this after its own date gets the date of its arrival."""


def believed(said: datetime, received: datetime) -> datetime:
    """The date of an event that carries one: never in the future, nor long ago.

    A producer's clock must not move its jobs ahead in the queue. Events that were written while
    their reader was away for longer keep their order: they are read in it.
    """
    return said if received - MOST_OFF <= said <= received else received


def near(one: datetime, other: datetime, seconds: float) -> bool:
    """Whether less than this lies between two dates; either may be later, by a clock put back."""
    return abs((other - one).total_seconds()) < seconds


def lasts(since: datetime, now: datetime, span: timedelta) -> bool:
    """Whether a span of time is not over; one that begins later is of a clock that was put back.

    So a clock that was hours ahead and is corrected holds up nothing for hours.
    """
    return timedelta(0) <= now - since < span
