"""Inputs that a decider cannot decide: it raises, or its process is gone, each time it tries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from gangline_bus.codec import Received
from gangline_bus.decision import Decider, Decision, Input, Observed, Recall, Recalling
from gangline_bus.poison import InputAt
from gangsim.bus import SimCrash
from gangsim.engine import Engine, Violation

HARMLESS = {
    "quota": ("job.waiting", "job.priority.requested"),
    "scheduler": ("gang.metered", "worker.stacks"),
    "fault-manager": ("job.waiting", "worker.stacks"),
    "checkpoint-service": ("job.waiting", "gang.metered", "worker.stacks"),
}
"""Types that a service reads and may miss: of another's log, and of a stream that users spoil."""
MOST_LIVES = 12


class PoisonError(Exception):
    """A bug that one input meets."""


@dataclass
class Poisons:
    """What is armed by service, and the inputs that met it."""

    engine: Engine
    armed: dict[str, tuple[str, bool]] = field(default_factory=dict)
    met: dict[str, dict[InputAt, bool]] = field(default_factory=dict)
    deaths: dict[tuple[str, InputAt], int] = field(default_factory=dict)

    def around(self, decider: Decider[Any, Any]) -> Decider[Any, Any]:
        """The decider with these bugs."""
        return (
            _Recalling(decider, self) if isinstance(decider, Recalling) else _Buggy(decider, self)
        )

    def meet(self, service: str, item: Input) -> None:
        """Raise for the first input of the type that is armed, and for that one ever after."""
        if not isinstance(item, Received):
            return
        at = InputAt(item.topic, item.partition, item.offset)
        met = self.met.setdefault(service, {})
        kind, silent = self.armed.get(service, ("", False))
        if at not in met:
            if item.envelope.type != kind:
                return
            del self.armed[service]
            met[at] = silent
        self.engine.count("poison: silent" if met[at] else "poison")
        self.deaths[service, at] = self.deaths.get((service, at), 0) + 1
        if self.deaths[service, at] > MOST_LIVES:
            raise Violation(f"{service} died {MOST_LIVES} times of {at}")
        if met[at]:
            raise SimCrash("an input that kills")
        raise PoisonError(item.envelope.id)


class _Buggy:
    """A decider that meets poisons before it decides."""

    def __init__(self, decider: Decider[Any, Any], poisons: Poisons) -> None:
        self._decider = decider
        self._poisons = poisons
        self.name, self.log = decider.name, decider.log
        self.inputs, self.signals = decider.inputs, decider.signals
        self.follows = decider.follows

    def initial(self) -> Any:
        return self._decider.initial()

    def initial_soft(self) -> Any:
        return self._decider.initial_soft()

    def decide(self, state: Any, soft: Any, item: Input, now: datetime) -> Sequence[Decision]:
        self._poisons.meet(self.name, item)
        return self._decider.decide(state, soft, item, now)

    def evolve(self, state: Any, decision: Decision, at: datetime) -> Any:
        return self._decider.evolve(state, decision, at)

    def observe(self, state: Any, soft: Any, observed: Observed, now: datetime) -> Any:
        return self._decider.observe(state, soft, observed, now)

    def effects(self, state: Any, soft: Any) -> Mapping[str, object]:
        return self._decider.effects(state, soft)

    def check(self, state: Any) -> list[str]:
        return self._decider.check(state)


class _Recalling(_Buggy):
    def recall(self, state: Any) -> Recall:
        assert isinstance(self._decider, Recalling)
        return self._decider.recall(state)
