"""The decider loop: the only place with transactions.

Takeover
1. `transactional_writer` of (service, shard): fences the predecessor and ends its open
   transactions. If the log's end is still held back, Kafka has lost track of a transaction, and the
   takeover fails.
2. Fold the own log up to its end, from the newest snapshot if there is one (snapshot.py).
3. Read the inputs from the first one that is not decided, as Kafka or the log itself says
   (shard.py). A new input is read from its start, signals from their end. A `Recalling`
   decider names earlier inputs that are read again.

Cycle
1. Unless the writer has lost the bus: poll a batch of inputs; add a Tick when one is due, and
   finished effects. Inputs that are not decided after `cycle_s` wait for the next cycle.
2. For each: `decide` -> events -> `evolve` in memory. Unreadable records go to the DLQ, and so does
   an input whose decision ended two processes (poison.py). skips.py says what else is skipped.
3. `check` the invariants; a violation ends the process before anything is written.
4. One transaction with the events, the DLQ records and the inputs' next offsets.
5. Write a snapshot if one is due; start the effects that the state now requests.

The state in memory runs ahead of the log between 2 and 4, so after any error it is worthless: the
error is raised, the process ends, and a new one folds the log again. Nothing is repaired in place.
Offsets of inputs that led to nothing wait for the next transaction, at most `offsets_after_s`:
deciding them again from the same state gives nothing again. Kafka forgets offsets that are not
committed again, so those of quiet inputs are committed every `offsets_refresh_s`.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from types import FrameType
from typing import Any, Generic, TypeVar

import structlog

from gangline_bus.codec import Received, UndecodableError, attributes_of, receive
from gangline_bus.decision import (
    BatchEnd,
    Decider,
    Input,
    InvariantViolated,
    Observed,
    Recalling,
    Refused,
    Tick,
)
from gangline_bus.dlq import DeadLetters
from gangline_bus.effects import EffectExecutor, Effects
from gangline_bus.fold import Folded, Progress, fold_log, no_progress, refuse_hanging
from gangline_bus.intake import Intake
from gangline_bus.log_writer import LogWriter
from gangline_bus.loop_settings import LoopSettings
from gangline_bus.offsets import InputOffsets
from gangline_bus.poison import DEATHS, POISONED, Guard, Suspect, trace_of
from gangline_bus.ports import Bus, BusError, OutRecord, Record, TopicPartition
from gangline_bus.recall import recalled
from gangline_bus.shard import Shard
from gangline_bus.skips import Skips
from gangline_bus.snapshot import Snapshots
from gangline_bus.topics import TopicNames
from gangline_bus.tracing import handling, traced

log = structlog.get_logger(__name__)
StateT = TypeVar("StateT")


class DeciderLoop(Generic[StateT]):
    """One shard of one decider. Not thread-safe: `take_over` once, then `cycle` for ever.

    `clock` dates decisions; `stopwatch` gives seconds that never go back, for `cycle_s`.
    """

    def __init__(
        self,
        bus: Bus,
        decider: Decider[StateT, Any],
        clock: Callable[[], datetime],
        *,
        stopwatch: Callable[[], float] = time.monotonic,
        names: TopicNames | None = None,
        settings: LoopSettings | None = None,
        executor: EffectExecutor | None = None,
        snapshots: Snapshots[StateT] | None = None,
    ) -> None:
        self.decider = decider
        self.names = names or TopicNames()
        self.settings = settings or LoopSettings()
        self._bus = bus
        self._clock = clock
        self._stopwatch = stopwatch
        self._effects = Effects(executor)
        self._skips = Skips(decider.name)
        self._snapshots = snapshots
        self._shard = Shard(decider, self.names, self.settings.shard)
        self._dead = DeadLetters(self.names, self.settings.dlq_limit)
        self._next_tick: datetime | None = None
        self._folded: Folded[StateT] = Folded(decider.initial())
        self._soft: Any = decider.initial_soft()
        self._last_written = 0
        self._traced = False
        self._follows = decider.follows or isinstance(decider, Recalling)

    @property
    def state(self) -> StateT:
        """The state as of the last finished cycle."""
        return self._folded.state

    @property
    def next_seq(self) -> int:
        """The seq of the next event of this shard's log."""
        return self._folded.next_seq

    @property
    def soft(self) -> Any:
        """The soft state; only for tests and the simulator to look at."""
        return self._soft

    def positions(self) -> dict[TopicPartition, int]:
        """The next offset of each input and signal that was not taken yet."""
        return self._reader.positions()

    def behind(self) -> dict[TopicPartition, int]:
        """Records of each input and signal that were not taken yet, as far as is known."""
        return self._reader.behind()

    def take_over(self, progress: Progress = no_progress) -> None:
        """Become the shard's only writer and rebuild its state; `progress` may end it.

        Raises BusError, LogBroken, Interrupted.
        """
        self._traced = traced()
        self._writer = self._bus.transactional_writer(self._shard.id)
        refuse_hanging(self._bus, self._shard.log)

        def folding(done: int, end: int) -> None:
            self.check_connection()
            progress(done, end)

        place, restored = self._shard.log, None
        if self._snapshots is not None:
            restored = self._snapshots.restore(self._bus, self.decider, place, folding)
        self._folded = restored or fold_log(self._bus, self.decider, place, progress=folding)
        of = self.settings
        self._log = LogWriter(
            self.decider, place, self._folded, instance=of.instance, release=of.release
        )
        note = self._bus.note(self._shard.notes, self._shard.log)
        self._reader = Intake(self._bus.reader(self.decider.name))
        positions, behind = self._start_positions()
        self._guard = Guard(note, self._write_note, self.settings.batch, behind)
        self._reader.assign(positions)
        self._offsets = InputOffsets(
            self._input_positions,
            after_s=self.settings.offsets_after_s,
            refresh_s=self.settings.offsets_refresh_s,
        )
        self._recall(positions, folding)
        log.info(
            "took over",
            service=self.decider.name,
            shard=self.settings.shard,
            seq=self._folded.next_seq,
            epoch=self._log.epoch,
        )

    def _recall(self, positions: Mapping[TopicPartition, int], progress: Progress) -> None:
        """Give the soft state what it is made of once more: inputs that were decided before."""
        if not isinstance(self.decider, Recalling):
            return
        recall, reader = self.decider.recall(self.state), f"recall-{self.decider.name}"
        for record, received in recalled(
            self._bus, recall, self.names, positions, reader=reader, progress=progress
        ):
            self._note(record, received, self._clock())

    def cycle(self, timeout_s: float = 0.2) -> int:
        """One round, waiting up to `timeout_s` for inputs; how many events were written.

        Raises what ends the process: BusError, InvariantViolated, LogBroken.
        """
        self.check_connection()
        self._reader.fill(self.settings.batch, timeout_s)
        now = self._clock()
        out: list[OutRecord] = []
        if not self._take_one(now, out):
            self._take_batch(now, out)
        self._save(out, now)
        self._skips.raise_error()
        self._guard.advanced(self._reader.positions)
        if self._snapshots is not None and self._snapshots.due(self._folded.next_seq, now):
            self._write_snapshot(self._snapshots)
        self._effects.start(self.decider, self.state, self._soft)
        return len(out)

    def _take_one(self, now: datetime, out: list[OutRecord]) -> bool:
        """While cautious: decide the next input alone and check the invariants; whether one waits.

        Signals before it are noted. No Tick is decided: its error would be blamed on the input.
        """
        while self._guard.cautious and (record := self._reader.next()) is not None:
            self._take(record, now, out, self._check)
            if record.topic not in self._shard.signals:
                self._guard.passed()
                return True
        return False

    def _take_batch(self, now: datetime, out: list[OutRecord]) -> None:
        """Inputs for `cycle_s` at most, finished effects, and a Tick if one is due."""
        taken, until = 0, self._stopwatch() + self.settings.cycle_s
        together = self.decider.follows and self._reader.several()
        while (record := self._reader.next()) is not None:
            self._take(record, now, out, together=together)
            taken += 1
            if self._stopwatch() >= until:
                break
        if together:
            self._decide(BatchEnd(), now, out, traceparent=None)
            self._observe(BatchEnd(), now)
        for done in self._effects.completed():
            self._decide(done, now, out, traceparent=None)
        if self._tick_is_due(now):
            self._next_tick = now + timedelta(seconds=self.settings.tick_interval_s)
            self._take_tick(now, out)
        try:
            self._check(out)
        except InvariantViolated:
            if taken:
                self._guard.doubt()
            raise

    def _take_tick(self, now: datetime, out: list[OutRecord]) -> None:
        tick = Tick(self._reader.read_until(now, self._shard.signals))
        try:
            self._observe(tick, now)
        except Exception as error:
            if not self._skips.skips(tick, error):
                raise
        else:
            self._decide(tick, now, out, traceparent=None)

    def _take(
        self,
        record: Record,
        now: datetime,
        out: list[OutRecord],
        check: Callable[[list[OutRecord]], None] = lambda _: None,
        *,
        together: bool = False,
    ) -> None:
        """The next record. Whatever its decision raises is noted before the process ends."""
        if record.topic in self._shard.signals:
            self._note_signal(record, now)
        else:
            self._guard.begin()
            with self._guard.deciding(record):
                self._handle(record, now, out, together=together)
                check(out)
        self._reader.take()

    def _check(self, out: list[OutRecord]) -> None:
        violations = self.decider.check(self.state) if out else []
        if violations:
            raise InvariantViolated("; ".join(violations[:5]))

    def _write_note(self, text: str) -> None:
        self._writer.commit([], {}, self._shard.group, self._shard.note(text))

    def blame_hang(self, frame: FrameType | None) -> None:
        """From another thread, when a cycle hangs and the process is about to be ended.

        Notes the input that is being decided; `frame` is that of the loop's thread.
        """
        self._guard.hangs(frame)

    def check_connection(self) -> None:
        """Raise BusUnavailable when the bus was lost; from any thread, also while a cycle hangs."""
        self._writer.check_connection()

    def close(self) -> None:
        """Close after the last cycle, and begin a last snapshot if there was news (`settle`)."""
        with contextlib.suppress(BusError):  # then the next process is cautious for nothing
            self.check_connection()
            self._guard.stopped()
        self._reader.close()
        self._writer.close()
        snapshots = self._snapshots
        if snapshots is None or not snapshots.lacks(self._folded.next_seq):
            return
        with contextlib.suppress(BusError):  # the log has it all
            if snapshots.settle(0.0):
                self._write_snapshot(snapshots)

    def settle(self, timeout_s: float) -> bool:
        """Wait for the last snapshot after `close`; False when it is not written in time."""
        return self._snapshots is None or self._snapshots.settle(timeout_s)

    def _write_snapshot(self, snapshots: Snapshots[StateT]) -> None:
        """Readable ends may lag behind a commit, never run ahead: a marker follows its records."""
        if self._last_written:
            end = self._bus.end_offsets([self._shard.log])[self._shard.log]
            self._folded.offset = max(0, end - self._last_written - 1)
        snapshots.write(self.decider.name, self._shard.log, self._folded, self._folded.offset)

    def _tick_is_due(self, now: datetime) -> bool:
        """Also when the clock went back: the next Tick is never further off than one interval."""
        interval = timedelta(seconds=self.settings.tick_interval_s)
        return self._next_tick is None or not now < self._next_tick <= now + interval

    def _start_positions(self) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
        return self._shard.start_positions(self._bus, self._folded)

    def _input_positions(self) -> dict[TopicPartition, int]:
        return self._shard.of_inputs(self._reader.positions())

    def _note_signal(self, record: Record, now: datetime) -> None:
        with contextlib.suppress(UndecodableError):  # the tracker puts it into the DLQ
            self._note(record, receive(record), now)

    def _observe(self, observed: Observed, now: datetime) -> None:
        self._soft = self.decider.observe(self.state, self._soft, observed, now)

    def _note(self, record: Record, received: Received, now: datetime) -> None:
        """Note in the soft state. It is lost at each takeover, so an error here ends no process."""
        try:
            self._observe(received, now)
        except Exception as error:  # noqa: BLE001 - whatever it is, other signals are noted
            self._dead.count(record, UndecodableError(f"not noted: {trace_of(error)}"), now)

    def _handle(
        self, record: Record, now: datetime, out: list[OutRecord], *, together: bool
    ) -> None:
        poison = self._guard.poison(record)
        if poison is not None:
            self._pass_over(record, poison, now, out)
            return
        try:
            received = receive(record)
        except UndecodableError as error:
            if not self._answer(error, now, out):
                out += self._dead.refuse(record, error, now)
            return
        if together:
            received = replace(received, together=True)
        self._decide(received, now, out, traceparent=received.envelope.traceparent)
        if self._follows:
            self._note(record, received, now)

    def _pass_over(
        self, record: Record, poison: Suspect, now: datetime, out: list[OutRecord]
    ) -> None:
        """Refuse an input whose decision ended processes.

        Its sender is answered, unless the answer ends a process too.
        """
        where = {"topic": record.topic, "partition": record.partition, "offset": record.offset}
        POISONED.add(1, {"service": self.decider.name, "topic": record.topic})
        log.critical("poison record skipped", **where, deaths=poison.deaths, trace=poison.trace)
        reason = f"its decision ended the {self.decider.name} {poison.deaths} times"
        error = UndecodableError(reason, attributes=attributes_of(record.headers))
        if poison.deaths == DEATHS:
            self._answer(error, now, out)
        out += self._dead.refuse(record, error, now, poison.trace)

    def _answer(self, error: UndecodableError, now: datetime, out: list[OutRecord]) -> int:
        """Let the decider answer the sender of an unreadable record; how many decisions it made."""
        attributes = error.attributes
        refused = Refused(
            error, attributes.get("ce_subject", ""), attributes.get("ce_type", ""), now
        )
        return self._decide(refused, now, out, traceparent=attributes.get("traceparent"))

    def _decide(
        self, item: Input, now: datetime, out: list[OutRecord], *, traceparent: str | None
    ) -> int:
        if not self._traced:
            return self._decide_and_write(item, now, out, traceparent)
        kind = item.envelope.type if isinstance(item, Received) else type(item).__name__.lower()
        with handling(f"{self.decider.name} {kind}", traceparent) as onward:
            return self._decide_and_write(item, now, out, onward)

    def _decide_and_write(
        self, item: Input, now: datetime, out: list[OutRecord], traceparent: str | None
    ) -> int:
        try:
            decisions = self.decider.decide(self._folded.state, self._soft, item, now)
        except Exception as error:
            if not self._skips.skips(item, error):
                raise
            return 0
        self._skips.decided(item)
        for ordinal, decision in enumerate(decisions):
            out.append(self._log.write(decision, item, ordinal, now, traceparent))
            self._observe(decision, now)
        return len(decisions)

    def _save(self, out: list[OutRecord], now: datetime) -> None:
        offsets = self._offsets.due(now, decided=bool(out))
        if offsets is None:
            return
        positions = self._input_positions()
        self._log.name_inputs(out, self._shard.named(positions))
        text = self._guard.settle(positions)
        note = None if text is None else self._shard.note(text)
        self._writer.commit(out, offsets, self._shard.group, note)
        self._guard.settled(text)
        self._offsets.committed(offsets)
        self._last_written = len(out) or self._last_written
