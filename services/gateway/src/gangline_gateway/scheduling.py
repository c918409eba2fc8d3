"""The scheduler's state as its log says, folded by the scheduler's own code.

A start continues from the scheduler's newest snapshot that holds, or folds the whole log. A log
that this version cannot fold has no state from there on: questions to it raise NoStateError.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import structlog

from gangline_bus.fold import Folded, fold_event
from gangline_bus.ports import Bus, Record, TopicPartition
from gangline_bus.snapshot import Snapshots, SnapshotStore
from gangline_scheduler.core.decide import Scheduler
from gangline_scheduler.core.policy.config import Policy
from gangline_scheduler.core.policy.configured import policy_in
from gangline_scheduler.core.snapshot import codec
from gangline_scheduler.core.state import State, fork
from gangline_schemas.envelope import Envelope

log = structlog.get_logger(__name__)


class NoStateError(Exception):
    """The scheduler's log cannot be folded here; the message says why and names the way out."""


class Scheduling:
    """The state of each shard. Not thread-safe: the tail guards it."""

    def __init__(self, store: SnapshotStore | None = None) -> None:
        self._decider = Scheduler()
        self._store = store
        self._shards: dict[TopicPartition, Folded[State]] = {}
        self._broken = ""

    def restore(self, bus: Bus, places: Iterable[TopicPartition], beat: Callable[[], None]) -> None:
        """Begin at the newest snapshots, else at the start of the log. Raises BusError.

        `beat` is called again and again.
        """
        for place in places:
            found = None
            if self._store is not None:
                kept = Snapshots(self._store, codec(self._decider.initial))
                found = kept.restore(bus, self._decider, place, lambda *_: beat())
            self._shards[place] = Folded(self._decider.initial()) if found is None else found

    def begins(self, place: TopicPartition) -> int | None:
        """An offset that is no later than that of the next event; None for other topics."""
        folded = self._shards.get(place)
        return None if folded is None else folded.offset

    def apply(self, record: Record, envelope: Envelope | None) -> None:
        """Fold one record of any topic; None: it is no event that this version knows."""
        folded = self._shards.get(record.place)
        if folded is None or self._broken:
            return
        position = None if envelope is None else envelope.position
        if envelope is None or position is None:
            self._break(record, "holds a record that this version does not know")
        elif position.seq >= folded.next_seq:
            try:
                fold_event(self._decider, folded, record, envelope, position)
            except Exception as error:  # noqa: BLE001 - the rest of the gateway goes on without it
                self._break(record, f"cannot be folded by this version ({type(error).__name__})")

    def _break(self, record: Record, why: str) -> None:
        self._broken = f"the scheduler's log {why}: upgrade the gateway"
        where = {"topic": record.topic, "offset": record.offset}
        log.critical("the scheduler's state is not followed", **where, reason=self._broken)

    def moment(self) -> Moment:
        """The states as they are now, which later events do not change. O(jobs + nodes)."""
        return Moment([_copy(folded.state) for folded in self._shards.values()], self._broken)


@dataclass(frozen=True, slots=True)
class Shard:
    """One shard's state, and the policy that its log names."""

    state: State
    policy: Policy


class Moment:
    """The states of the shards at one time. `broken`: why there are none."""

    def __init__(self, states: list[State], broken: str = "") -> None:
        self._states = states
        self._broken = broken

    def shards(self) -> list[Shard]:
        """All of them. Raises NoStateError."""
        if self._broken:
            raise NoStateError(self._broken)
        try:
            return [Shard(state, policy_in(state)) for state in self._states]
        except ValueError as error:
            raise NoStateError(f"the scheduler is newer: {error}; upgrade the gateway") from None


def _copy(state: State) -> State:
    copy = fork(state)
    copy.ended = state.ended  # large, and only single runs are looked up in it
    return copy
