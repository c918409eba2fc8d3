"""How far a decision log has decided its inputs, according to the log itself.

Kafka forgets a group's offsets that are not committed for `offsets.retention.minutes` (7 days by
default), partition by partition. Deciding an input twice would revive jobs, so the log knows the
offsets too. The last record of each transaction names the next offset of every input that moved
since the last such record. Inputs read after that led to nothing. They lead to nothing again, as
the state is the same.

The header's value is `TOPIC PARTITION:OFFSET PARTITION:OFFSET;TOPIC ...`, with the catalog's names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from gangline_bus.ports import Headers, OutRecord, TopicPartition

HEADER = "ce_ganglineinputs"


def with_inputs(record: OutRecord, places: Mapping[TopicPartition, int]) -> OutRecord:
    """The record, which also names these next offsets, by the catalog's topics."""
    topics: dict[str, list[str]] = {}
    for place, offset in places.items():
        topics.setdefault(place.topic, []).append(f"{place.partition}:{offset}")
    text = ";".join(" ".join((topic, *pairs)) for topic, pairs in topics.items())
    return replace(record, headers=(*record.headers, (HEADER, text.encode())))


def named_inputs(headers: Headers) -> dict[TopicPartition, int]:
    """The next offsets that a record names; {} for most. Raises ValueError if malformed."""
    if not headers or headers[-1][0] != HEADER:  # it is always the last: nothing to search
        return {}
    found = {}
    for part in headers[-1][1].decode().split(";"):
        topic, *pairs = part.split(" ")
        for pair in pairs:
            partition, _, offset = pair.partition(":")
            found[TopicPartition(topic, int(partition))] = int(offset)
    return found


def begin_at(
    places: Iterable[TopicPartition],
    committed: Mapping[TopicPartition, int | None],
    named: Mapping[TopicPartition, int | None],
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
) -> dict[TopicPartition, int]:
    """Where to read on: never before what Kafka or the log says is decided.

    A new input is read from its start. One that is shorter than what was decided lost its end, or
    was made again: it is read from its end, as going back is worse.
    """
    found = {}
    for at in places:
        known = [offset for offset in (committed.get(at), named.get(at)) if offset is not None]
        found[at] = min(max(known), ends[at]) if known else starts[at]
    return found
