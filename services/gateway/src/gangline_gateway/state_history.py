"""The scheduler's state at a past time: a fold of its log, from the nearest state before.

1. Start at the nearest of: a state that an earlier fold kept, the last answer's state, a stored
   snapshot, the log's start.
2. Fold to the time. Every `EVERY` events a copy of the state is kept, so that the next question,
   such as the next place of a slider, is near one. At most `KEPT` are kept, about evenly spread.
3. A fold that is not done within `WITHIN_S` ends with a problem that says how far it came. The
   state there is kept, so the same question continues.

One fold runs at a time, and pauses often: other threads of the gateway need the interpreter.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

import structlog

from gangline_bus.codec import UndecodableError, record_time
from gangline_bus.fold import Folded, Interrupted, LogBroken, fold_on
from gangline_bus.ports import Bus, TopicPartition
from gangline_bus.snapshot import Snapshots, SnapshotStore
from gangline_gateway.problems import invalid, unavailable
from gangline_gateway.scheduling import Shard
from gangline_gateway.user_limits import SharedSlots
from gangline_scheduler.core.decide import Scheduler
from gangline_scheduler.core.policy.configured import policy_in
from gangline_scheduler.core.snapshot import codec
from gangline_scheduler.core.state import State, fork

log = structlog.get_logger(__name__)

EVERY = 20_000
KEPT = 16
WITHIN_S = 20.0
WAIT_S = 5.0
WAITING, PER_USER = 8, 4
LOOK_S = 600.0
PAUSE_EACH, PAUSE_S = 200, 0.002


@dataclass(frozen=True, slots=True)
class _Kept:
    seq: int
    at: datetime
    """Of its last event."""
    folded: Folded[State]


@dataclass
class _States:
    """States of one shard's log, by time."""

    kept: list[_Kept] = field(default_factory=list)
    look_s: float = 0.0
    """When to look for stored snapshots again."""
    asked: _Kept | None = None
    """The last answer's state: the next question is often about a time soon after."""

    def before(self, at: datetime) -> _Kept | None:
        """The last one at or before a time."""
        known = [*self.kept, *([self.asked] if self.asked is not None else [])]
        earlier = (one for one in known if one.at <= at)
        return max(earlier, key=lambda one: one.seq, default=None)

    def keep(self, folded: Folded[State], *, apart: int | None = None) -> None:
        """Keep a copy, unless there is one that is less than `apart` events (`EVERY`) away.

        Of too many, the one with the nearest neighbours goes. The new one stays: the same question
        may continue there.
        """
        at, least = _time_of(folded), EVERY if apart is None else apart
        distances = (abs(one.seq - folded.next_seq) for one in self.kept)
        if at is None or min(distances, default=least) < least:
            return
        new = _Kept(folded.next_seq, at, _copy(folded))
        self.kept = sorted([*self.kept, new], key=lambda one: one.seq)
        if len(self.kept) > KEPT:
            del self.kept[self._crowded(new.seq)]

    def _crowded(self, new: int) -> int:
        """The place between the nearest neighbours, neither the first, the last nor the new one."""
        seqs = [one.seq for one in self.kept]
        places = (index for index in range(1, len(seqs) - 1) if seqs[index] != new)
        return min(places, key=lambda index: seqs[index + 1] - seqs[index - 1])


class StateHistory:
    """May be used from any thread."""

    def __init__(
        self,
        bus: Bus,
        places: Sequence[TopicPartition],
        store: SnapshotStore | None = None,
        *,
        within_s: float = WITHIN_S,
        pause_each: int = PAUSE_EACH,
    ) -> None:
        """`places`: the partitions of the scheduler's log."""
        self._bus, self._places, self._store = bus, places, store
        self._within_s, self._pause_each = within_s, pause_each
        self._scheduler = Scheduler()
        self._states = {place: _States() for place in places}
        self._lock = threading.Lock()
        self._waiting = SharedSlots(WAITING, PER_USER, "past times")
        self._first: datetime | None = None

    def earliest(self) -> datetime | None:
        """The time of the oldest decision that can be folded; None: there is none."""
        if self._first is None:
            times = (self._earliest_of(place) for place in self._places)
            self._first = min((at for at in times if at is not None), default=None)
        return self._first

    def shards(self, at: datetime) -> tuple[Sequence[Shard], int]:
        """All shards at a time, and the number of events until then. Raises problems."""
        with self._waiting.hold():
            found = self._all_at(at)
        if not any(one.next_seq for one in found):
            raise invalid("time", "is before the first decision; see /v1/history/range")
        shards = [Shard(one.state, policy_in(one.state)) for one in found]
        return shards, sum(one.next_seq for one in found)

    def _all_at(self, at: datetime) -> list[Folded[State]]:
        if not self._lock.acquire(timeout=WAIT_S):
            raise unavailable("busy", "another past time is being read; try again")
        try:
            deadline_s = time.monotonic() + self._within_s
            return [self._at(place, at, deadline_s) for place in self._places]
        finally:
            self._lock.release()

    def _at(self, place: TopicPartition, at: datetime, deadline_s: float) -> Folded[State]:
        try:
            return self._folded(place, self._start(place, at), at, deadline_s)
        except LogBroken as error:
            log.exception("a past state cannot be folded", reason=str(error))
            raise unavailable(
                "no-answer", f"the scheduler's log cannot be folded: {error}"
            ) from None

    def _folded(
        self, place: TopicPartition, folded: Folded[State], at: datetime, deadline_s: float
    ) -> Folded[State]:
        states, count = self._states[place], 0

        def progress(offset: int, end: int) -> None:
            nonlocal count
            count += 1
            if folded.next_seq % EVERY == 0:
                states.keep(folded)
            if count % self._pause_each == 0:
                time.sleep(PAUSE_S)
                if time.monotonic() > deadline_s:
                    raise Interrupted(f"{offset:,} of {end:,} records are read")

        try:
            fold_on(self._bus, self._scheduler, place, folded, at, progress=progress)
        except Interrupted as error:
            states.keep(folded, apart=1)
            raise unavailable("not-read-yet", f"{error}; ask again to continue") from None
        states.keep(folded)
        if (last := _time_of(folded)) is not None:
            states.asked = _Kept(folded.next_seq, last, _copy(folded))
        return folded

    def _start(self, place: TopicPartition, at: datetime) -> Folded[State]:
        """A copy of the nearest state before a time. Raises a 422 problem if there is none."""
        states = self._states[place]
        if time.monotonic() >= states.look_s:
            states.look_s = time.monotonic() + LOOK_S
            for stored in self._stored(place):
                states.keep(stored, apart=1)
        kept = states.before(at)
        if kept is not None:
            return _copy(kept.folded)
        if self._bus.start_offsets([place])[place] > 0:
            raise invalid("time", "is before what the log still has; see /v1/history/range")
        return Folded(self._scheduler.initial())

    def _stored(self, place: TopicPartition) -> Iterator[Folded[State]]:
        """The stored snapshots of this log; the newest ones are all that the store has."""
        if self._store is None:
            return
        snapshots = Snapshots(self._store, codec(self._scheduler.initial))
        for stored in snapshots.stored(self._scheduler, place):
            if self._is_of_this_log(place, stored):
                yield stored

    def _is_of_this_log(self, place: TopicPartition, stored: Folded[State]) -> bool:
        try:
            fold_on(self._bus, self._scheduler, place, _copy(stored), _time_of(stored))
        except LogBroken as error:
            log.warning("snapshot skipped", service=self._scheduler.name, reason=str(error))
            return False
        return True

    def _earliest_of(self, place: TopicPartition) -> datetime | None:
        start = self._bus.start_offsets([place])[place]
        if start > 0:
            times = [_time_of(one) for one in self._stored(place)]
            return min((at for at in times if at is not None), default=None)
        if self._bus.end_offsets([place])[place] == 0:
            return None
        reader = self._bus.reader("history-range")
        try:
            reader.assign({place: start})
            records = reader.poll(1, 1.0)
            return record_time(records[0].timestamp_ms) if records else None
        except UndecodableError:
            return None
        finally:
            reader.close()


def _time_of(folded: Folded[State]) -> datetime | None:
    """When its last event was decided; None for a log's start."""
    text = folded.last.rpartition(" ")[2]
    return datetime.fromisoformat(text).astimezone(UTC) if text else None


def _copy(folded: Folded[State]) -> Folded[State]:
    state = fork(folded.state)
    state.ended = dict(folded.state.ended)
    return replace(folded, state=state, inputs=dict(folded.inputs))
