"""Starts the effects that a decider's state requests, each once."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import Any, Protocol, TypeVar

from gangline_bus.decision import Decider, EffectDone

StateT = TypeVar("StateT")


class EffectExecutor(Protocol):
    """Does the effects that states ask for, outside of the loop's thread."""

    def submit(self, key: str, effect: object) -> None:
        """Start the work of a key that was not submitted before."""

    def completed(self) -> list[EffectDone]:
        """The effects that were finished since the last call."""

    def drop(self, keys: AbstractSet[str]) -> None:
        """The state requests these no longer: they are not tried again."""


class Effects:
    """The effects of one loop. Without an executor none is ever started."""

    def __init__(self, executor: EffectExecutor | None) -> None:
        self._executor = executor
        self._submitted: set[str] = set()

    def completed(self) -> list[EffectDone]:
        """The effects that were finished since the last call."""
        return [] if self._executor is None else self._executor.completed()

    def start(self, decider: Decider[StateT, Any], state: StateT, soft: Any) -> None:
        """Submit what is requested now and was not at the last call."""
        if self._executor is None:
            return
        requested = decider.effects(state, soft)
        gone = self._submitted - requested.keys()
        if gone:
            self._executor.drop(gone)
            self._submitted -= gone
        for key in sorted(requested.keys() - self._submitted):
            self._submitted.add(key)
            self._executor.submit(key, requested[key])
