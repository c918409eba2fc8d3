"""Folding a decision log, with the checks that make the log its own witness."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from gangline_bus.codec import UndecodableError, decode
from gangline_bus.decision import Decider, Decision
from gangline_bus.ports import Bus, Record, TopicPartition

StateT = TypeVar("StateT")
_BATCH = 5000


class LogBroken(Exception):
    """A decision log has a gap, a stale writer or something unreadable in it. Nothing goes on."""


@dataclass(slots=True)
class Folded(Generic[StateT]):
    """A state and where in its log it stands."""

    state: StateT
    next_seq: int = 0
    writer_epoch: int = 0


def fold_record(decider: Decider[StateT], folded: Folded[StateT], record: Record) -> None:
    """Apply one record of the decider's own log. Raises LogBroken."""
    where = f"{record.topic}[{record.partition}]@{record.offset}"
    try:
        envelope = decode(record)
    except UndecodableError as error:
        raise LogBroken(f"{where}: {error.reason}") from error
    position = envelope.position
    if position is None or position.shard != record.partition:
        raise LogBroken(f"{where}: no position of this shard")
    if position.seq != folded.next_seq:
        raise LogBroken(f"{where}: seq is {position.seq}, expected {folded.next_seq}")
    if position.writer_epoch < folded.writer_epoch:
        raise LogBroken(
            f"{where}: written by epoch {position.writer_epoch} after {folded.writer_epoch}"
        )
    decision = Decision(envelope.subject, envelope.data)
    folded.state = decider.evolve(folded.state, decision, envelope.time)
    folded.next_seq += 1
    folded.writer_epoch = position.writer_epoch


def fold_log(
    bus: Bus, decider: Decider[StateT], place: TopicPartition, *, timeout_s: float = 60.0
) -> Folded[StateT]:
    """The state at the end of the log as it was when this was called.

    Ends when the position reaches the end offset; it never waits for "the last message", since
    control records may follow it. Raises LogBroken after `timeout_s` without progress.
    """
    folded = Folded(decider.initial())
    end = bus.end_offsets([place])[place]
    reader = bus.reader(f"fold-{decider.name}")
    try:
        reader.assign(bus.start_offsets([place]))
        idle_s = 0.0
        while reader.positions()[place] < end:
            records = reader.poll(_BATCH, 0.5)
            idle_s = 0.0 if records else idle_s + 0.5
            if idle_s > timeout_s:
                at = reader.positions()[place]
                raise LogBroken(f"{place.topic}: stuck at {at} of {end} for {timeout_s:.0f} s")
            for record in records:
                fold_record(decider, folded, record)
    finally:
        reader.close()
    return folded
