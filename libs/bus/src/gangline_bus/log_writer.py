"""Writes decisions to the own log and applies them to the state in memory."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Generic, TypeVar

from gangline_bus.codec import Received, encode
from gangline_bus.decision import Decider, Decision, Input
from gangline_bus.fold import Folded, event_name
from gangline_bus.input_offsets import with_inputs
from gangline_bus.ports import MAX_RECORD_BYTES, OutRecord, TopicPartition
from gangline_schemas.envelope import Envelope, LogPosition, derived_id

StateT = TypeVar("StateT")
_MAX_EVENT_BYTES = MAX_RECORD_BYTES - 65_536  # its headers have the rest


class LogWriter(Generic[StateT]):
    """Writes for one process of a shard: `epoch` is its, `folded` runs ahead of the log."""

    def __init__(
        self,
        decider: Decider[StateT, Any],
        place: TopicPartition,
        folded: Folded[StateT],
        *,
        instance: str,
        release: str,
    ) -> None:
        self._decider = decider
        self._place = place
        self._folded = folded
        self._release = release
        self._source = f"/gangline/{decider.name}/{instance}"
        self.epoch = folded.writer_epoch + 1

    def write(
        self, decision: Decision, item: Input, ordinal: int, now: datetime, traceparent: str | None
    ) -> OutRecord:
        """The record of the decision that is the `ordinal`th of an input; the state follows it.

        Raises ValueError for an event that is larger than the bus takes.
        """
        shard, seq = self._place.partition, self._folded.next_seq
        envelope = Envelope(
            id=self._event_id(item, ordinal, seq),
            source=self._source,
            time=now,
            subject=decision.subject,
            data=decision.event,
            traceparent=traceparent,
            position=LogPosition(shard, self.epoch, seq),
        )
        record = encode(
            envelope,
            topic=self._place.topic,
            key=str(shard),
            partition=shard,
            release=self._release,
        )
        if len(record.value) > _MAX_EVENT_BYTES:
            raise ValueError(f"{envelope.type} is larger than the bus takes")
        self._folded.state = self._decider.evolve(self._folded.state, decision, now)
        self._folded.next_seq = seq + 1
        self._folded.writer_epoch = self.epoch
        self._folded.last = event_name(envelope)
        return record

    def name_inputs(self, out: list[OutRecord], inputs: Mapping[TopicPartition, int]) -> None:
        """Let the transaction's last decision name the inputs that moved since others did.

        `inputs` are by the catalog's names.
        """
        mine = [at for at, record in enumerate(out) if record.topic == self._place.topic]
        known = self._folded.inputs
        places = {name: to for name, to in inputs.items() if known.get(name) != to}
        if mine and places:
            out[mine[-1]] = with_inputs(out[mine[-1]], places)
            known |= places

    def _event_id(self, item: Input, ordinal: int, seq: int) -> str:
        if isinstance(item, Received):
            of = item.envelope
            return derived_id(self._decider.name, of.source, of.id, ordinal)
        return derived_id(self._place.topic, self._place.partition, self.epoch, seq)
