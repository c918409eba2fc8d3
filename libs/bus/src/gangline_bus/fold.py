"""Folding a decision log, with the checks that make the log its own witness."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar

from gangline_bus.codec import RELEASE_HEADER, FromLaterError, UndecodableError, decode
from gangline_bus.decision import Decider, Decision, UnfoldedEvent
from gangline_bus.input_offsets import named_inputs
from gangline_bus.ports import Bus, Record, TopicPartition
from gangline_schemas.envelope import Envelope, LogPosition

StateT = TypeVar("StateT")
Progress = Callable[[int, int], None]
"""Called after each record and each wait, with the offset reached and the log's end.

A fold may take minutes: this is where its process beats and keeps its membership. It ends the fold
by raising BusError or Interrupted.
"""
_STUCK_S = 60.0
_BATCH = 5000


def no_progress(done: int, end: int) -> None:
    """The default progress of a fold: does nothing."""


class Interrupted(Exception):
    """A fold was ended because its process is asked to stop."""


class LogBroken(Exception):
    """A decision log has a gap, a stale writer or an unreadable record. The fold stops."""


@dataclass(slots=True)
class Folded(Generic[StateT]):
    """A state and where in its log it stands. `last` names the event before `next_seq`.

    `offset` is that of the last event that was read from the log, not written.
    `inputs` are the next offsets of the inputs that the log names, by the catalog's topics.
    """

    state: StateT
    next_seq: int = 0
    writer_epoch: int = 0
    last: str = ""
    inputs: dict[TopicPartition, int] = field(default_factory=dict)
    offset: int = 0


def refuse_hanging(bus: Bus, place: TopicPartition) -> None:
    """Raise LogBroken when the log's end is held back; call it as the log's fenced, only writer.

    A takeover ends all open transactions of predecessors, so one that is open now will never end.
    Kafka 4.1 to 4.4 can forget the marker of a transaction (KAFKA-20734). Readers would then wait
    for it for ever, without a sign.
    """
    readable, written = bus.end_offsets([place])[place], bus.written_offsets([place])[place]
    if readable != written:
        raise LogBroken(
            f"{place.topic}[{place.partition}]: a transaction at offset {readable} of {written} "
            "was never ended by Kafka; see 'A transaction hangs' in docs/guides/bad-days.md"
        )


def fold_record(decider: Decider[StateT, Any], folded: Folded[StateT], record: Record) -> None:
    """Apply one record of the decider's own log. Raises LogBroken."""
    fold_event(decider, folded, record, *_read(record))


def fold_event(
    decider: Decider[StateT, Any],
    folded: Folded[StateT],
    record: Record,
    envelope: Envelope,
    position: LogPosition,
) -> None:
    """Apply a record that was read already. Raises LogBroken."""
    if position.seq != folded.next_seq:
        raise LogBroken(f"{_where(record)}: seq is {position.seq}, expected {folded.next_seq}")
    if position.writer_epoch < folded.writer_epoch:
        raise LogBroken(
            f"{_where(record)}: written by epoch {position.writer_epoch} "
            f"after {folded.writer_epoch}"
        )
    decision = Decision(envelope.subject, envelope.data)
    try:
        folded.state = decider.evolve(folded.state, decision, envelope.time)
    except UnfoldedEvent as error:
        raise LogBroken(f"{_where(record)}: {error}") from error
    folded.next_seq += 1
    folded.writer_epoch = position.writer_epoch
    folded.last = event_name(envelope)
    folded.inputs |= named_inputs(record.headers)
    folded.offset = record.offset


def event_name(envelope: Envelope) -> str:
    """Tells an event from all others: an id is derived, so another log may hold the same."""
    return f"{envelope.id} {envelope.time.astimezone(UTC).isoformat()}"


def fold_log(
    bus: Bus,
    decider: Decider[StateT, Any],
    place: TopicPartition,
    *,
    until: datetime | None = None,
    progress: Progress = no_progress,
) -> Folded[StateT]:
    """The state at the end of the log as it was when this was called, or at an earlier time.

    With `until` it is the state before the first event that was decided later.

    Ends when the position reaches the end offset; it never waits for "the last message", since
    control records may follow it. Raises LogBroken after a minute without progress.
    """
    folded = Folded(decider.initial())
    fold_on(bus, decider, place, folded, until, progress=progress)
    return folded


def fold_on(
    bus: Bus,
    decider: Decider[StateT, Any],
    place: TopicPartition,
    folded: Folded[StateT],
    until: datetime | None = None,
    *,
    progress: Progress = no_progress,
) -> None:
    """Continue from an earlier state of this log to its end, or to the state at a time.

    `folded` is the state at the log's start or at any later place; its offset is that of its last
    event or an earlier one. It is changed as far as the fold came, also if `progress` ends it.
    Raises LogBroken, also if its last event is not there: then it is the state of another log.
    """
    start = max(bus.start_offsets([place])[place], folded.offset)
    found = not folded.next_seq
    for record in _records(bus, f"fold-{decider.name}", place, start, progress):
        envelope, position = _read(record)
        if not found and position.seq < folded.next_seq:
            found = event_name(envelope) == folded.last
            continue
        if not found:
            break
        if until is not None and envelope.time > until:
            return
        fold_event(decider, folded, record, envelope, position)
    if not found:
        raise LogBroken(f"{place.topic}: the event that the state applied last is not there")


def _records(
    bus: Bus, name: str, place: TopicPartition, start: int, progress: Progress
) -> Iterator[Record]:
    """The records from `start` up to the end as it is now."""
    end = bus.end_offsets([place])[place]
    return records_between(bus, name, place, start, end, progress=progress)


def records_between(
    bus: Bus,
    name: str,
    place: TopicPartition,
    start: int,
    end: int,
    *,
    progress: Progress = no_progress,
) -> Iterator[Record]:
    """The records at offsets from `start` to before `end`.

    Raises LogBroken after a minute without progress.
    """
    reader = bus.reader(name)
    try:
        reader.assign({place: start})
        idle_s = 0.0
        while reader.positions()[place] < end:
            records = reader.poll(_BATCH, 0.5)
            idle_s = 0.0 if records else idle_s + 0.5
            if idle_s > _STUCK_S:
                at = reader.positions()[place]
                raise LogBroken(f"{place.topic}: stuck at {at} of {end} for {_STUCK_S:.0f} s")
            for record in records:
                if record.offset >= end:
                    break
                yield record
                progress(record.offset + 1, end)
            if not records:
                progress(reader.positions()[place], end)
    finally:
        reader.close()


def _read(record: Record) -> tuple[Envelope, LogPosition]:
    try:
        envelope = decode(record, own=True)
    except FromLaterError as error:
        release = error.attributes.get(RELEASE_HEADER, "that version")
        raise LogBroken(
            f"{_where(record)}: {error.reason}. A later version wrote it: start {release} again; "
            "see 'Rollback' in docs/guides/upgrades.md"
        ) from error
    except UndecodableError as error:
        raise LogBroken(f"{_where(record)}: {error.reason}") from error
    position = envelope.position
    if position is None or position.shard != record.partition:
        raise LogBroken(f"{_where(record)}: no position of this shard")
    return envelope, position


def _where(record: Record) -> str:
    return f"{record.topic}[{record.partition}]@{record.offset}"
