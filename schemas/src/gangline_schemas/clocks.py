"""Which clock counts for what a producer dates."""

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
