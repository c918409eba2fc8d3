"""How many members a group has, by a real broker."""

from __future__ import annotations

import uuid

from gangline_bus.kafka import KafkaBus
from gangline_bus.topics import TopicNames, create_topics
from gangline_schemas.catalog import Topic
from support.waiting import wait_until


def test_members_are_counted_while_they_are_there(kafka_bootstrap: str) -> None:
    names = TopicNames(f"g{uuid.uuid4().hex[:8]}-")
    bus = KafkaBus(kafka_bootstrap, client="members-test")
    create_topics(bus, names)
    group = f"{names.prefix}gangline.scheduler"
    member = bus.join(group, names.name(Topic.SCHEDULING))
    wait_until("the shard", lambda: member.owned(0.2))
    assert bus.members(group) == 1
    member.close()
    wait_until("the end of the membership", lambda: bus.members(group) == 0)
    assert bus.members(f"{group}-that-never-was") == 0
    bus.close()
