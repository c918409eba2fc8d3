"""The decisions of one input, each of which sees the earlier ones."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import fields
from datetime import datetime
from typing import Any, Generic, TypeVar

from gangline_bus.decision import Decision
from gangline_bus.overlay import Overlay
from gangline_schemas.base import Event

StateT = TypeVar("StateT")
SoftT = TypeVar("SoftT")


def branch(state: StateT) -> StateT:
    """A dataclass that changes by itself, for as long as the given one stays as it is.

    Its dicts become overlays, so the cost is that of the changes. Values in them must be replaced
    and never changed in place.
    """
    other = copy.copy(state)
    for each in fields(state):  # type: ignore[arg-type]
        value: Any = getattr(state, each.name)
        if isinstance(value, dict):
            setattr(other, each.name, Overlay(value))
    return other


class Plan(Generic[StateT, SoftT]):
    """Collects the decisions of one `decide`. It never changes the state that it was given.

    `state` is that state as the decisions so far will leave it. It is branched when it is read
    after a decision, so an input with a single decision costs no branch.
    """

    def __init__(
        self,
        state: StateT,
        soft: SoftT,
        now: datetime,
        fold: Callable[[StateT, Event, datetime], StateT],
        branched: Callable[[StateT], StateT] = branch,
    ) -> None:
        self.soft = soft
        self.now = now
        self.decisions: list[Decision] = []
        self._state = state
        self._fold = fold
        self._branched = branched
        self._follows = False

    @property
    def state(self) -> StateT:
        """The state after the decisions so far; to be read only."""
        if self.decisions and not self._follows:
            self._follows = True
            self._state = self._branched(self._state)
            for decision in self.decisions:
                self._state = self._fold(self._state, decision.event, self.now)
        return self._state

    def add(self, subject: str, event: Event) -> None:
        """Decide this event about a job, node or team."""
        self.decisions.append(Decision(subject, event))
        if self._follows:
            self._state = self._fold(self._state, event, self.now)
