"""Cursors: the next offset of each partition that a stream reads, as one short text.

`scheduling.0.118,quota.0.12` means: of gangline.scheduling, partition 0, offset 118 comes next.
Cursors are the ids of server-sent events, so Last-Event-ID resumes a stream.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from gangline_bus.ports import TopicPartition
from gangline_bus.topics import TopicNames
from gangline_schemas.catalog import Topic

_PART = re.compile(r"^([a-z]{1,32})\.(\d{1,6})\.(\d{1,18})$", re.ASCII)
_MAX_CHARS = 4096
_FAMILY = "gangline."


class CursorError(ValueError):
    """The text is not a cursor of this stream."""


def write(positions: Mapping[TopicPartition, int], names: TopicNames) -> str:
    """The cursor of these positions."""
    parts = []
    for place in sorted(positions):
        topic = names.topic(place.topic).removeprefix(_FAMILY)
        parts.append(f"{topic}.{place.partition}.{positions[place]}")
    return ",".join(parts)


def read(
    text: str, places: Iterable[TopicPartition], names: TopicNames
) -> dict[TopicPartition, int]:
    """The positions of a cursor, of these places only. Raises CursorError."""
    allowed = set(places)
    found: dict[TopicPartition, int] = {}
    if len(text) > _MAX_CHARS:
        raise CursorError("must be the id of an event of this stream")
    for part in text.split(","):
        matched = _PART.match(part)
        try:
            topic = Topic(f"{_FAMILY}{matched[1]}") if matched else None
        except ValueError:
            topic = None
        if matched is None or topic is None:
            raise CursorError("must be the id of an event of this stream")
        place = TopicPartition(names.name(topic), int(matched[2]))
        if place not in allowed:
            raise CursorError("must be the id of an event of this stream")
        found[place] = int(matched[3])
    return found
