"""Follows a decider's log: folds its state with the decider's own code.

A start continues from the decider's newest valid snapshot, or folds the whole log. An event that
this version does not know or cannot fold is skipped. From there on the state is not exact: answers
that compute with it raise NoStateError.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

import structlog

from gangline_bus.decision import Decider
from gangline_bus.fold import Folded, fold_event
from gangline_bus.ports import Bus, Record, TopicPartition
from gangline_bus.snapshot import SnapshotCodec, Snapshots, SnapshotStore
from gangline_schemas.catalog import Topic
from gangline_schemas.envelope import Envelope

log = structlog.get_logger(__name__)
StateT = TypeVar("StateT")


class NoStateError(Exception):
    """A decider's state is not exact here; the message says why and what to do."""


class Followed(Generic[StateT]):
    """The state of each shard of one decider. Not thread-safe: the tail guards it.

    `copy` must return a state that later events do not change.
    """

    def __init__(
        self,
        decider: Decider[StateT, Any],
        codec: SnapshotCodec[StateT],
        copy: Callable[[StateT], StateT],
        store: SnapshotStore | None = None,
    ) -> None:
        self.log = decider.log
        self._decider = decider
        self._codec = codec
        self._copy = copy
        self._store = store
        self._shards: dict[TopicPartition, Folded[StateT]] = {}
        self._broken = ""

    def restore(self, bus: Bus, places: Iterable[TopicPartition], beat: Callable[[], None]) -> None:
        """Starts at the newest snapshots, or at the start of the log. Raises BusError.

        `beat` is called regularly.
        """
        for place in places:
            found = None
            if self._store is not None:
                kept = Snapshots(self._store, self._codec)
                found = kept.restore(bus, self._decider, place, lambda *_: beat())
            self._shards[place] = Folded(self._decider.initial()) if found is None else found

    def begins(self, place: TopicPartition) -> int | None:
        """The offset to read from, at or before the next event; None for other topics."""
        folded = self._shards.get(place)
        return None if folded is None else folded.offset

    def apply(self, record: Record, envelope: Envelope | None, *, whole: bool) -> bool:
        """Folds one record of any topic; whether it was the next one of this log.

        `whole`: this version knows all of its event.
        """
        folded = self._shards.get(record.place)
        if folded is None or record.offset < folded.offset:
            return False  # the tail also reads records before the snapshot, for its rings
        position = None if envelope is None else envelope.position
        if envelope is None or position is None:
            self._break(record, "has what this version does not know: upgrade the gateway")
            return True
        if position.seq < folded.next_seq:
            return False
        if not whole:
            self._break(record, "has what this version does not know: upgrade the gateway")
        if self._broken:
            folded.next_seq = position.seq
        try:
            fold_event(self._decider, folded, record, envelope, position)
        except Exception as error:
            log.exception("a followed log cannot be folded", topic=record.topic)
            self._break(record, f"cannot be folded ({type(error).__name__}): see the log")
        return True

    def _break(self, record: Record, why: str) -> None:
        if self._broken:
            return
        self._broken = f"the log of the {self._decider.name} {why}"
        where = {"topic": record.topic, "offset": record.offset}
        log.critical("a decider's state is not exact", **where, reason=self._broken)

    def copies(self) -> Copies[StateT]:
        """Copies of the current states."""
        states = [self._copy(folded.state) for folded in self._shards.values()]
        return Copies(states, self._broken)


def only_state(copies: Copies[StateT], log: Topic) -> StateT:
    """The state of a log with one partition. Raises NoStateError."""
    states = copies.states()
    if len(states) != 1:
        raise NoStateError(f"{log.value} has {len(states)} partitions and must have one")
    return states[0]


class Copies(Generic[StateT]):
    """The states of the shards at one time. `broken`: why they are not exact.

    `known` is one state per shard, also where they are not exact: enough to show jobs and nodes.
    """

    def __init__(self, known: list[StateT], broken: str = "") -> None:
        self.known = known
        self._broken = broken

    def states(self) -> list[StateT]:
        """One state per shard, as the decider has it. Raises NoStateError."""
        if self._broken:
            raise NoStateError(self._broken)
        return self.known
