"""Whether the scheduler is away: its group on Kafka has no member.

A thread asks Kafka, so that no decision waits for the answer. While Kafka does not answer, or gives
this service no right to ask, nothing is known, and the scheduler counts as there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime

import structlog

from gangline_bus.ports import BusError

log = structlog.get_logger(__name__)
EVERY_S = 10.0


class SchedulerWatch:
    """`members` counts the members of the scheduler's group now. Raises BusError."""

    def __init__(
        self,
        members: Callable[[], int],
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._members = members
        self._clock = clock
        self._refused = False
        self._away_since: datetime | None = None

    def away_since(self) -> datetime | None:
        """Since when the group has no member; None: it has, or nothing is known."""
        return self._away_since

    def start(self, stopping: threading.Event) -> None:
        """Look every ten seconds until the process stops."""

        def run() -> None:
            while not stopping.wait(EVERY_S):
                self.look()

        threading.Thread(target=run, name="scheduler-watch", daemon=True).start()

    def look(self) -> None:
        """Ask once."""
        try:
            there = self._members() > 0
        except BusError as error:
            there = True
            if not self._refused:
                log.warning("whether the scheduler is away is not known", error=str(error))
            self._refused = True
        else:
            self._refused = False
        self._away_since = None if there else self._away_since or self._clock()
