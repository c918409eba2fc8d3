"""A scheduler that is watched: after each input, all that must always hold."""

from __future__ import annotations

from gangline_bus.decision import Decision, Input, Tick
from gangline_scheduler.core.decide import Scheduler
from gangline_scheduler.core.invariants import consistent, violations
from gangline_scheduler.core.searches import Searches
from gangline_scheduler.core.snapshot import codec, fingerprint
from gangline_scheduler.service.config import SchedulerSettings
from gangline_schemas.base import Event
from support.builders.deciding import Drive
from support.builders.scheduler import Cluster


class Checked(Cluster):
    """The scheduler with these settings, without teams or nodes.

    What is remembered of searches decides nothing: looked at on each tick. `thorough`: on each
    input, and also that deciding changes nothing and the same input again leads to nothing.
    """

    def __init__(self, settings: SchedulerSettings, *, thorough: bool = True) -> None:
        self.policy = settings.policy()
        Drive.__init__(self, Scheduler(settings.limits(), self.policy))
        self.thorough = thorough

    def take(self, item: Input) -> list[Event]:
        """Decide, fold and check one input."""
        mark = fingerprint(self.state) if self.thorough else ""
        decisions = list(self.decider.decide(self.state, None, item, self.now))
        assert not self.thorough or fingerprint(self.state) == mark, "decide changed the state"
        if self.thorough or isinstance(item, Tick):
            assert decisions == self._decided_without_memory(item), "a memory decided"
        for decision in decisions:
            self.state = self.decider.evolve(self.state, decision, self.now)
            self.log.append((decision, self.now))
        found = violations(self.state)
        assert not found, "; ".join(found)
        if self.thorough and not isinstance(item, Tick):
            again = self.decider.decide(self.state, None, item, self.now)
            assert not again, f"decided twice: {again[0].event!r}"
        if self.thorough:
            derived = consistent(self.state)
            assert not derived, "; ".join(derived)
        return [decision.event for decision in decisions]

    def _decided_without_memory(self, item: Input) -> list[Decision]:
        """What is decided if every search is made."""
        state = self.state
        known = state.free.searches, state.empty.searches, state.unreservable
        state.free.searches, state.empty.searches = Searches(), Searches()
        state.unreservable = Searches()
        try:
            return list(self.decider.decide(state, None, item, self.now))
        finally:
            state.free.searches, state.empty.searches, state.unreservable = known

    def folds_to_the_same(self) -> None:
        """A successor that folds the log, or reads a snapshot, stands where this one does."""
        now = fingerprint(self.state)
        assert fingerprint(self.replayed()) == now, "the log folds to another state"
        snapshots = codec(self.decider.initial)
        loaded = snapshots.load(snapshots.dump(snapshots.copy(self.state)))
        assert fingerprint(loaded) == now, "a snapshot holds another state"
