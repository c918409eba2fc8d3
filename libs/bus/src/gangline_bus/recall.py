"""Reads earlier inputs again, for a decider that makes its soft state of them at a takeover."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

from gangline_bus.codec import Received, UndecodableError, event_type, receive
from gangline_bus.decision import Recall
from gangline_bus.fold import Progress, records_between
from gangline_bus.ports import Bus, Record, TopicPartition
from gangline_bus.topics import TopicNames


def recalled(
    bus: Bus,
    recall: Recall,
    names: TopicNames,
    positions: Mapping[TopicPartition, int],
    *,
    reader: str,
    progress: Progress,
) -> Iterator[tuple[Record, Received]]:
    """Inputs that were decided before, up to `positions`, as `recall` names them."""
    topic = names.name(recall.topic)
    wanted = {TopicPartition(topic, number): at for number, at in recall.offsets.items()}
    for place, start in bus.start_offsets(sorted(wanted)).items():
        begin, end = max(start, wanted[place]), positions.get(place, 0)
        if begin >= end:
            continue
        for record in records_between(bus, reader, place, begin, end, progress=progress):
            if event_type(record.headers) in recall.types:
                with contextlib.suppress(UndecodableError):  # it was refused in its time
                    yield record, receive(record)
