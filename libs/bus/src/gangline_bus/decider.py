"""The decider loop: the only place with transactions.

Takeover
1. `transactional_writer` of (service, shard): fences the predecessor, ends what it left open. If
   the log's end is still held back, Kafka has lost track of a transaction: nothing goes on.
2. Fold the own log up to its end, from the newest snapshot if there is one (snapshot.py).
3. Read on behind the inputs that Kafka or the log itself says are decided (input_places.py; a new
   input: from its start; signals: from their end). Read again what a `Recalling` decider names of
   what lies before them.

Cycle
1. Unless the writer has lost the bus: poll a batch of inputs; add a Tick when one is due, and
   finished effects.
2. For each: `decide` -> events -> `evolve` in memory. What cannot be read goes to the DLQ.
3. `check` the invariants; a violation ends the process before anything is written.
4. One transaction with the events, the DLQ records and the inputs' next offsets.
5. Write a snapshot if one is due; start the effects that the state now asks for.

The state in memory runs ahead of the log between 2 and 4, so after any error it is worthless: the
error is raised, the process ends, and a new one folds the log again. There is no repair in place.
Offsets of inputs that led to nothing wait for the next transaction, at most `offsets_after_s`:
deciding them again from the same state gives nothing again. Those of quiet inputs are committed
again every `offsets_refresh_s`, as Kafka forgets what nobody commits.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Generic, Protocol, TypeVar

import structlog

from gangline_bus.codec import (
    FromLaterError,
    Received,
    UndecodableError,
    encode,
    event_type,
    receive,
)
from gangline_bus.decision import (
    Decider,
    Decision,
    EffectDone,
    Input,
    InvariantViolated,
    Recall,
    Recalling,
    Refused,
    Tick,
)
from gangline_bus.dlq import DlqLimit, refused_record
from gangline_bus.fold import (
    Folded,
    LogBroken,
    Progress,
    event_name,
    fold_log,
    records_between,
    refuse_hanging,
    unheard,
)
from gangline_bus.input_places import begin_at, with_inputs
from gangline_bus.ports import Bus, BusError, BusUnavailable, OutRecord, Record, TopicPartition
from gangline_bus.snapshot import Snapshots
from gangline_bus.topics import TopicNames
from gangline_bus.tracing import handling, traced
from gangline_schemas.catalog import catalog
from gangline_schemas.envelope import Envelope, LogPosition, derived_id

log = structlog.get_logger(__name__)
StateT = TypeVar("StateT")


class Performer(Protocol):
    """Does the effects that states ask for, outside of the loop's thread."""

    def submit(self, key: str, effect: object) -> None:
        """Start the work of a key that was not submitted before."""

    def completed(self) -> list[EffectDone]:
        """What was finished since the last call."""


@dataclass(frozen=True, slots=True)
class LoopSettings:
    """How the loop batches. `instance` is the CloudEvents source's last part."""

    shard: int = 0
    batch: int = 500
    tick_interval_s: float = 1.0
    offsets_after_s: float = 1.0
    offsets_refresh_s: float = 3600.0
    dlq_limit: int = 10_000
    instance: str = "0"


class DeciderLoop(Generic[StateT]):
    """One shard of one decider. Not thread-safe: `take_over` once, then `cycle` for ever."""

    def __init__(
        self,
        bus: Bus,
        decider: Decider[StateT],
        clock: Callable[[], datetime],
        *,
        names: TopicNames | None = None,
        settings: LoopSettings | None = None,
        performer: Performer | None = None,
        snapshots: Snapshots[StateT] | None = None,
    ) -> None:
        self.decider = decider
        self.names = names or TopicNames()
        self.settings = settings or LoopSettings()
        self._bus = bus
        self._clock = clock
        self._performer = performer
        self._snapshots = snapshots
        self._log_topic = self.names.name(decider.log)
        self._place = TopicPartition(self._log_topic, self.settings.shard)
        self._group = f"{self.names.prefix}gangline.{decider.name}.{self.settings.shard}.inputs"
        self._logs = {
            self.names.name(topic) for topic, entry in catalog().items() if entry.kind == "log"
        }
        self._signals = {self.names.name(topic) for topic in decider.signals}
        self._dlq_limit = DlqLimit(self.settings.dlq_limit)
        self._submitted: set[str] = set()
        self._next_tick: datetime | None = None
        self._saved: dict[TopicPartition, int] = {}
        self._unsaved_since: datetime | None = None
        self._next_refresh: datetime | None = None
        self._folded: Folded[StateT] = Folded(decider.initial())
        self._epoch = 0
        self._last_written = 0
        self._traced = False
        self._recalling = isinstance(decider, Recalling)

    @property
    def state(self) -> StateT:
        """The state as of the last finished cycle."""
        return self._folded.state

    @property
    def next_seq(self) -> int:
        """The seq of the next event of this shard's log."""
        return self._folded.next_seq

    def take_over(self, progress: Progress = unheard) -> None:
        """Become the shard's only writer and rebuild its state; `progress` may end it.

        Raises BusError, LogBroken, Interrupted.
        """
        self._traced = traced()
        transactional_id = f"{self.names.prefix}gangline.{self.decider.name}.{self.settings.shard}"
        self._writer = self._bus.transactional_writer(transactional_id)
        refuse_hanging(self._bus, self._place)

        def folding(done: int, end: int) -> None:
            self.check_connection()
            progress(done, end)

        self._folded = self._restored(folding) or fold_log(
            self._bus, self.decider, self._place, progress=folding
        )
        self._epoch = self._folded.writer_epoch + 1
        self._reader = self._bus.reader(self.decider.name)
        positions = self._start_positions()
        self._reader.assign(positions)
        self._saved = self._input_positions()
        self._recall(positions, folding)
        log.info(
            "took over",
            service=self.decider.name,
            shard=self.settings.shard,
            seq=self._folded.next_seq,
            epoch=self._epoch,
        )

    def _restored(self, progress: Progress) -> Folded[StateT] | None:
        if self._snapshots is None:
            return None
        return self._snapshots.restore(self._bus, self.decider, self._place, progress)

    def _recall(self, positions: Mapping[TopicPartition, int], progress: Progress) -> None:
        """Give the soft state what it is made of once more: inputs that were decided before."""
        if not isinstance(self.decider, Recalling):
            return
        recall: Recall = self.decider.recall(self.state)
        topic, name = self.names.name(recall.topic), f"recall-{self.decider.name}"
        wanted = {TopicPartition(topic, number): at for number, at in recall.offsets.items()}
        for place, start in self._bus.start_offsets(sorted(wanted)).items():
            begin, end = max(start, wanted[place]), positions.get(place, 0)
            if begin >= end:
                continue
            for record in records_between(self._bus, name, place, begin, end, progress=progress):
                if event_type(record.headers) in recall.types:
                    with contextlib.suppress(UndecodableError):  # it was refused in its time
                        self.decider.observe(self.state, receive(record), self._clock())

    def cycle(self, timeout_s: float = 0.2) -> int:
        """One round, waiting up to `timeout_s` for inputs; how many events were written.

        Raises what ends the process: BusError, InvariantViolated, LogBroken.
        """
        self.check_connection()
        records = self._reader.poll(self.settings.batch, timeout_s)
        now = self._clock()
        out: list[OutRecord] = []
        for record in records:
            self._handle(record, now, out)
        for done in self._performer.completed() if self._performer is not None else []:
            self._decide(done, now, out, traceparent=None)
        if self._tick_is_due(now):
            self._next_tick = now + timedelta(seconds=self.settings.tick_interval_s)
            self._decide(Tick(), now, out, traceparent=None)
        if out:
            violations = self.decider.check(self.state)
            if violations:
                raise InvariantViolated("; ".join(violations[:5]))
        self._save(out, now)
        if self._snapshots is not None and self._snapshots.due(self._folded.next_seq, now):
            self._write_snapshot(self._snapshots)
        self._start_effects()
        return len(out)

    def check_connection(self) -> None:
        """Raise BusUnavailable when the bus was lost; from any thread, also while a cycle hangs."""
        self._writer.check_connection()

    def close(self) -> None:
        """Let go after the last cycle, and begin a last snapshot if there was news: `settle`."""
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
            end = self._bus.end_offsets([self._place])[self._place]
            self._folded.offset = max(0, end - self._last_written - 1)
        snapshots.write(self.decider.name, self._place, self._folded, self._folded.offset)

    def _tick_is_due(self, now: datetime) -> bool:
        """Also when the clock went back: the next Tick is never further off than one interval."""
        interval = timedelta(seconds=self.settings.tick_interval_s)
        return self._next_tick is None or not now < self._next_tick <= now + interval

    def _start_positions(self) -> dict[TopicPartition, int]:
        inputs = [at for topic in self.decider.inputs for at in self.names.places(self._bus, topic)]
        signals = [
            at for topic in self.decider.signals for at in self.names.places(self._bus, topic)
        ]
        committed = self._bus.committed(self._group, inputs)
        named = {at: self._folded.inputs.get(self._input_name(at)) for at in inputs}
        known = [offset for offset in (*named.values(), *committed.values()) if offset is not None]
        if self._folded.next_seq and inputs and not known:
            raise LogBroken(
                f"{self._log_topic}[{self._place.partition}] holds {self._folded.next_seq} "
                "decisions, but neither it nor Kafka says which inputs they were made from; see "
                "'Offsets are lost' in docs/guides/bad-days.md"
            )
        starts, ends = self._bus.start_offsets(inputs), self._bus.end_offsets(inputs)
        positions = begin_at(inputs, committed, named, starts, ends)
        return positions | self._bus.end_offsets(signals)

    def _input_positions(self) -> dict[TopicPartition, int]:
        return {
            at: offset
            for at, offset in self._reader.positions().items()
            if at.topic not in self._signals
        }

    def _handle(self, record: Record, now: datetime, out: list[OutRecord]) -> None:
        try:
            received = receive(record)
        except UndecodableError as error:
            if record.topic not in self._signals:
                self._refuse(record, error, now, out)
            return
        if record.topic in self._signals:
            self.decider.observe(self.state, received, now)
        else:
            self._decide(received, now, out, traceparent=received.envelope.traceparent)
            if self._recalling:
                self.decider.observe(self.state, received, now)

    def _refuse(
        self, record: Record, error: UndecodableError, now: datetime, out: list[OutRecord]
    ) -> None:
        attributes = error.attributes
        refused = Refused(
            error, attributes.get("ce_subject", ""), attributes.get("ce_type", ""), now
        )
        if self._decide(refused, now, out, traceparent=attributes.get("traceparent")):
            return
        if isinstance(error, FromLaterError) and record.topic in self._logs:
            return  # it is counted, and the log keeps it
        if self._dlq_limit.keeps(record, error, now):
            out.append(refused_record(record, error, dlq=self.names.dlq(record.topic)))

    def _decide(
        self, item: Input, now: datetime, out: list[OutRecord], *, traceparent: str | None
    ) -> int:
        if not self._traced:
            return self._decide_and_write(item, now, out, traceparent)
        with handling(f"{self.decider.name} {_kind(item)}", traceparent) as onward:
            return self._decide_and_write(item, now, out, onward)

    def _decide_and_write(
        self, item: Input, now: datetime, out: list[OutRecord], traceparent: str | None
    ) -> int:
        decisions = self.decider.decide(self._folded.state, item, now)
        for ordinal, decision in enumerate(decisions):
            self._write(decision, item, ordinal, now, out, traceparent)
        return len(decisions)

    def _write(
        self,
        decision: Decision,
        item: Input,
        ordinal: int,
        now: datetime,
        out: list[OutRecord],
        traceparent: str | None,
    ) -> None:
        seq = self._folded.next_seq
        envelope = Envelope(
            id=self._event_id(item, ordinal, seq),
            source=f"/gangline/{self.decider.name}/{self.settings.instance}",
            time=now,
            subject=decision.subject,
            data=decision.event,
            traceparent=traceparent,
            position=LogPosition(self.settings.shard, self._epoch, seq),
        )
        out.append(
            encode(
                envelope,
                topic=self._log_topic,
                key=str(self.settings.shard),
                partition=self.settings.shard,
            )
        )
        self._folded.state = self.decider.evolve(self._folded.state, decision, now)
        self._folded.next_seq = seq + 1
        self._folded.writer_epoch = self._epoch
        self._folded.last = event_name(envelope)

    def _event_id(self, item: Input, ordinal: int, seq: int) -> str:
        if isinstance(item, Received):
            of = item.envelope
            return derived_id(self.decider.name, of.source, of.id, ordinal)
        return derived_id(self._log_topic, self.settings.shard, self._epoch, seq)

    def _save(self, out: list[OutRecord], now: datetime) -> None:
        refresh = self._refresh_is_due(now)
        moved = self._input_positions() if refresh else self._moved()
        if not out and not refresh and self._may_wait(moved, now):
            return
        self._name_inputs(out)
        self._writer.commit(out, moved, self._group)
        self._saved |= moved
        self._unsaved_since = None
        self._last_written = len(out) or self._last_written

    def _may_wait(self, moved: Mapping[TopicPartition, int], now: datetime) -> bool:
        if not moved:
            return True
        if self._unsaved_since is None:
            self._unsaved_since = now
        waited_s = (now - self._unsaved_since).total_seconds()
        return 0.0 <= waited_s < self.settings.offsets_after_s

    def _refresh_is_due(self, now: datetime) -> bool:
        """Counted from the takeover; a clock that went back makes it due, as with Ticks."""
        interval = timedelta(seconds=self.settings.offsets_refresh_s)
        if self._next_refresh is None:
            self._next_refresh = now + interval
        if now < self._next_refresh <= now + interval:
            return False
        self._next_refresh = now + interval
        return True

    def _name_inputs(self, out: list[OutRecord]) -> None:
        """Let the transaction's last decision name the inputs that moved since others did."""
        mine = [at for at, record in enumerate(out) if record.topic == self._log_topic]
        known = self._folded.inputs
        places = {
            name: to
            for at, to in self._input_positions().items()
            if known.get(name := self._input_name(at)) != to
        }
        if mine and places:
            out[mine[-1]] = with_inputs(out[mine[-1]], places)
            known |= places

    def _input_name(self, place: TopicPartition) -> TopicPartition:
        return TopicPartition(place.topic.removeprefix(self.names.prefix), place.partition)

    def _moved(self) -> Mapping[TopicPartition, int]:
        saved = self._saved  # of the inputs; signals are never saved
        positions = self._reader.positions()
        return {at: to for at, to in positions.items() if at in saved and to > saved[at]}

    def _start_effects(self) -> None:
        if self._performer is None:
            return
        wanted = self.decider.effects(self.state)
        self._submitted &= wanted.keys()
        for key in sorted(wanted.keys() - self._submitted):
            self._submitted.add(key)
            self._performer.submit(key, wanted[key])


def _kind(item: Input) -> str:
    return item.envelope.type if isinstance(item, Received) else type(item).__name__.lower()


def wait_for_bus(
    probe: Callable[[], object], *, attempts: int, pause: Callable[[float], object]
) -> None:
    """Call `probe` until the bus answers: a bounded, visible retry with growing pauses.

    Raises the last BusUnavailable after `attempts`.
    """
    for attempt in range(1, attempts + 1):
        try:
            probe()
        except BusUnavailable as error:
            if attempt == attempts:
                raise
            wait_s = min(5.0, 0.2 * 2**attempt)
            log.warning("waiting for the bus", attempt=attempt, of=attempts, error=str(error))
            pause(wait_s)
        else:
            return
