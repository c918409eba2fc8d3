"""Drives a decider without a bus: inputs in, decisions out, and its log for the replay."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Generic, TypeVar

from gangline_bus.codec import Received, UndecodableError
from gangline_bus.decision import BatchEnd, Decider, Decision, Input, Observed, Refused, Tick
from gangline_schemas.base import Event, FieldError
from gangline_schemas.catalog import event_types
from gangline_schemas.envelope import Envelope
from gangline_schemas.job import JobSpec
from gangline_schemas.team_limits import TeamConfig

StateT = TypeVar("StateT")
EventT = TypeVar("EventT", bound=Event)
START = datetime(2026, 11, 21, 8, 0, tzinfo=UTC)


class Drive(Generic[StateT]):
    """A decider, its state, its log and a clock that moves only on request."""

    def __init__(self, decider: Decider[StateT, Any]) -> None:
        self.decider = decider
        self.state = decider.initial()
        self.soft = decider.initial_soft()
        self.now = START
        self.log: list[tuple[Decision, datetime]] = []
        self._inputs = 0

    def give(
        self, event: Event, *, ce_id: str | None = None, source: str = "/t", together: bool = False
    ) -> list[Event]:
        """One event from outside, now; what was decided. `together`: as one of a batch."""
        self._inputs += 1
        envelope = Envelope(
            id=ce_id or f"in-{self._inputs}", source=source, time=self.now, subject="s", data=event
        )
        return self.take(Received(envelope, "t", 0, self._inputs, together))

    def refuse(
        self, subject: str, event_type: str = "job.submitted", fields: Sequence[FieldError] = ()
    ) -> list[Event]:
        """One record that is not a valid event."""
        error = UndecodableError("it is not valid", fields=tuple(fields))
        return self.take(Refused(error, subject, event_type, self.now))

    def tick(self, seconds: float = 0.0) -> list[Event]:
        """Let time pass and tick."""
        self.now += timedelta(seconds=seconds)
        return self.take(Tick())

    def end_batch(self) -> list[Event]:
        """The end of what was given together."""
        decided = self.take(BatchEnd())
        self._observe(BatchEnd())
        return decided

    def take(self, item: Input) -> list[Event]:
        """Decide, fold and check one input, as the loop does."""
        if isinstance(item, Tick):
            self._observe(item)
        decisions = list(self.decider.decide(self.state, self.soft, item, self.now))
        for decision in decisions:
            self.state = self.decider.evolve(self.state, decision, self.now)
            self.log.append((decision, self.now))
            self._observe(decision)
        if isinstance(item, Received) and self.decider.follows:
            self._observe(item)
        assert self.decider.check(self.state) == []
        return [decision.event for decision in decisions]

    def _observe(self, observed: Observed) -> None:
        self.soft = self.decider.observe(self.state, self.soft, observed, self.now)

    def replayed(self) -> StateT:
        """The state that a successor folds from the log, as it is written on the bus."""
        state = self.decider.initial()
        for decision, at in self.log:
            event = event_types()[decision.event.type].decode(decision.event.encode())
            state = self.decider.evolve(state, Decision(decision.subject, event), at)
        return state


def only(events: Sequence[Event], kind: type[EventT]) -> EventT:
    """The one event of a kind; fails when there is none or more."""
    found = every(events, kind)
    assert len(found) == 1, f"{kind.type}: {len(found)} in {[event.type for event in events]}"
    return found[0]


def every(events: Sequence[Event], kind: type[EventT]) -> list[EventT]:
    """The events of a kind, in order."""
    return [event for event in events if isinstance(event, kind)]


def spec(team: str = "nlp", gpus: int = 1, **fields: object) -> JobSpec:
    """A small valid job spec."""
    resources = {"gpus": gpus, **fields.pop("resources", {})}  # type: ignore[dict-item]
    return JobSpec.model_validate(
        {"name": "j", "team": team, "command": ["x"], "resources": resources, **fields}
    )


def team(name: str = "nlp", limit: int = 64, guarantee: int = 0, borrow: int = 0) -> TeamConfig:
    """A team's limits."""
    return TeamConfig(team=name, gpu_limit=limit, gpu_guarantee=guarantee, borrow_limit=borrow)
