"""Drives one decider by hand, as the loop does, with virtual time and its own log."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Generic, TypeVar

from gangline_bus.codec import Received
from gangline_bus.decision import Decider, Decision, EffectDone, Input, Observed, Recalling, Tick
from gangline_bus.ports import TopicPartition
from gangline_schemas.base import Event
from gangline_schemas.catalog import topic_of
from gangline_schemas.envelope import Envelope

StateT = TypeVar("StateT")
SoftT = TypeVar("SoftT")
START = datetime(2026, 11, 21, 8, 0, tzinfo=UTC)


class DeciderRun(Generic[StateT, SoftT]):
    """A decider, its states and its log. Each step checks invariants and that decide is pure."""

    def __init__(
        self, decider: Decider[StateT, SoftT], fingerprint: Callable[[StateT], str]
    ) -> None:
        self.decider = decider
        self.fingerprint = fingerprint
        self.state = decider.initial()
        self.soft = decider.initial_soft()
        self.now = START
        self.log: list[tuple[Decision, datetime]] = []
        self.inputs: list[Received] = []
        self._offset = 0

    def feed(self, event: Event) -> list[Event]:
        """Decide upon an input event; the own events that followed."""
        return self.take(self.received(event))

    def take(self, received: Received) -> list[Event]:
        """Decide upon an input or signal as it was recorded; the own events that followed."""
        if received.topic in {topic.value for topic in self.decider.signals}:
            self._observe(received)
            return []
        events = self._decide(received)
        if isinstance(self.decider, Recalling):
            self.inputs.append(received)
            self._observe(received)
        return events

    def tick(self, after_s: float = 0.0, unread_s: float = 0.0) -> list[Event]:
        """Let time pass, then a Tick; the own events that followed.

        `unread_s`: for so long partition 1 of the signals was not read up to its end.
        """
        self.now += timedelta(seconds=after_s)
        tick = Tick(
            {
                TopicPartition(topic.value, number): self.now - timedelta(seconds=unread)
                for topic in self.decider.signals
                for number, unread in enumerate((0.0, unread_s))
            }
        )
        self._observe(tick)
        return self._decide(tick)

    def done(self, key: str, result: object) -> list[Event]:
        """An effect was executed; the own events that followed."""
        return self._decide(EffectDone(key, result))

    def signal(self, event: Event, partition: int = 0) -> None:
        """A heartbeat is seen."""
        self._observe(replace(self.received(event), partition=partition))

    def effects(self) -> dict[str, object]:
        """What the state asks for now."""
        return dict(self.decider.effects(self.state, self.soft))

    def take_over(self) -> None:
        """A new process folds the log: the hard state is equal, the soft one is lost or reread."""
        before = self.fingerprint(self.state)
        state = self.decider.initial()
        for decision, at in self.log:
            state = self.decider.evolve(state, decision, at)
        assert self.fingerprint(state) == before
        self.state, self.soft = state, self.decider.initial_soft()
        if isinstance(self.decider, Recalling):
            recall = self.decider.recall(state)
            for received in self.inputs:
                begin = recall.offsets.get(received.partition, received.offset + 1)
                if received.envelope.type in recall.types and received.offset >= begin:
                    self._observe(received)

    def events(self, kind: type[Event]) -> list[Event]:
        """All own events of one type so far."""
        return [decision.event for decision, _ in self.log if isinstance(decision.event, kind)]

    def received(self, event: Event) -> Received:
        """The event as it is read from its topic."""
        self._offset += 1
        envelope = Envelope(f"id-{self._offset}", "/test", self.now, "subject", event)
        return Received(envelope, topic_of(event.type).value, 0, self._offset)

    def _observe(self, observed: Observed) -> None:
        self.soft = self.decider.observe(self.state, self.soft, observed, self.now)

    def _decide(self, item: Input) -> list[Event]:
        before, soft = self.fingerprint(self.state), deepcopy(self.soft)
        decisions = list(self.decider.decide(self.state, self.soft, item, self.now))
        assert self.fingerprint(self.state) == before, "decide changed the state"
        assert self.soft == soft, "decide changed the soft state"
        for decision in decisions:
            self.state = self.decider.evolve(self.state, deepcopy(decision), self.now)
            self.log.append((decision, self.now))
            self._observe(decision)
        assert self.decider.check(self.state) == []
        return [decision.event for decision in decisions]
