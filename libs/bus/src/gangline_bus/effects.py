"""Starts the effects that a decider's state requests, each once."""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

import structlog

from gangline_bus.decision import Decider, EffectDone
from gangline_bus.poison import POISONED, trace_of

log = structlog.get_logger(__name__)
StateT = TypeVar("StateT")


class EffectExecutor(Protocol):
    """Does the effects that states ask for, outside of the loop's thread."""

    def submit(self, key: str, effect: object) -> None:
        """Start the work of a key that was not submitted before."""

    def completed(self) -> list[EffectDone]:
        """The effects that were finished since the last call."""


class Effects:
    """The effects of one loop. Without an executor none is ever started."""

    def __init__(self, executor: EffectExecutor | None) -> None:
        self._executor = executor
        self._submitted: set[str] = set()

    def completed(self) -> list[EffectDone]:
        """The effects that were finished since the last call."""
        return [] if self._executor is None else self._executor.completed()

    @staticmethod
    def skip(service: str, done: EffectDone, error: Exception) -> None:
        """Report a result whose decision raised. Nothing was decided, so the state is whole.

        The effect is not done again before the next takeover: its result may be the same.
        """
        POISONED.add(1, {"service": service, "topic": "effects"})
        log.critical("result of an effect skipped", effect=done.key, trace=trace_of(error))

    def start(self, decider: Decider[StateT, Any], state: StateT, soft: Any) -> None:
        """Submit what is requested now and was not at the last call."""
        if self._executor is None:
            return
        requested = decider.effects(state, soft)
        self._submitted &= requested.keys()
        for key in sorted(requested.keys() - self._submitted):
            self._submitted.add(key)
            self._executor.submit(key, requested[key])
