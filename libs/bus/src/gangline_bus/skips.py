"""Decisions that raise and are skipped, since no record can be: results of effects, and Ticks.

`decide` is pure, so its error leaves the state as it was. A new process has a new soft state, which
may help a Tick. So a Tick that raises ends a process that had decided one before, once the other
decisions of the cycle are committed: else the next process would be in the same place.
"""

from __future__ import annotations

import structlog

from gangline_bus.decision import BatchEnd, EffectDone, Input, Tick
from gangline_bus.poison import POISONED, trace_of

log = structlog.get_logger(__name__)


class Skips:
    """The decisions that one process of a service skips."""

    def __init__(self, service: str) -> None:
        self._service = service
        self._has_ticked = False
        self._error: Exception | None = None

    def skips(self, item: Input, error: Exception) -> bool:
        """Whether the cycle continues without this decision; it is reported then."""
        match item:
            case EffectDone(key=key):  # its result may be the same when it is done again
                what, name = "effects", key
            case Tick():
                what = name = "ticks"
                self._error = error if self._has_ticked else None
            case BatchEnd():  # the next Tick decides about all that there is
                what = name = "batches"
            case _:
                return False
        POISONED.add(1, {"service": self._service, "topic": what})
        log.critical("decision skipped", item=name, trace=trace_of(error))
        return True

    def decided(self, item: Input) -> None:
        """A decision did not raise."""
        self._has_ticked = self._has_ticked or isinstance(item, Tick)

    def raise_error(self) -> None:
        """After the commit: end the process if a Tick asks for it."""
        if self._error is not None:
            raise self._error
