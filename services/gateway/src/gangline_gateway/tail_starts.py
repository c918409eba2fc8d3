"""Where the tail begins to read each topic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gangline_bus.ports import Bus, TopicPartition
from gangline_bus.topics import TopicNames
from gangline_gateway.followed import Followed
from gangline_gateway.ring import MAX_RECORDS
from gangline_gateway.view_snapshot import Marks
from gangline_schemas.catalog import Topic, catalog

STREAM_RECORDS = 20_000
STEP_RECORDS = 2000


def start_positions(
    bus: Bus, names: TopicNames, followed: Sequence[Followed[Any]], marks: Marks
) -> dict[TopicPartition, int]:
    """Offsets to read from; records that a snapshot covers are read only for the rings.

    Compacted streams begin at their start, heartbeats and the audit log at their end, and other
    streams at most `STREAM_RECORDS` before it.
    """
    positions: dict[TopicPartition, int] = {}
    for topic, entry in catalog().items():
        if topic is Topic.METRICS:  # thousands of points a second, about no job
            continue
        places = names.places(bus, topic)
        starts = bus.start_offsets(places)
        known = {at: mark.next for at in places if (mark := marks.of(at)) is not None}
        if entry.kind == "stream":
            kept = {
                Topic.HEARTBEATS: 0,
                Topic.AUDIT: 0,
                Topic.STEPS: STEP_RECORDS,
                Topic.LOGS: STEP_RECORDS,
            }
            ends = bus.end_offsets(places)
            back = kept.get(topic, STREAM_RECORDS)
            first = starts if entry.compacted else {at: ends[at] - back for at in places}
            positions |= {at: max(starts[at], first[at]) for at in places}
            for at in [at for at, after in known.items() if after > ends[at]]:
                marks.forget(at)  # the stream was created again
        else:
            for at in places:
                begins = [each.begins(at) for each in followed]
                after = known.get(at, 0) - MAX_RECORDS
                found = min([after, *(begin for begin in begins if begin is not None)])
                positions[at] = max(starts[at], found)
    return positions
