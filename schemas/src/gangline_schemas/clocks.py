"""Which clock counts for what a producer dates."""

from __future__ import annotations

from datetime import datetime, timedelta

MOST_OFF = timedelta(minutes=10)
"""What is received later than this after its own date is dated when it is received."""


def believed(said: datetime, received: datetime) -> datetime:
    """When something was sent that says when: never in the future, nor long ago.

    A producer's clock must not give its jobs a place in the queue that others waited for. What was
    written while its reader was away for longer keeps its order: it is read in that.
    """
    return said if received - MOST_OFF <= said <= received else received
