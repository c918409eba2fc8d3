"""Quota is ready when each team of its file is configured, and not before."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from builders_deciding import team
from gangline_bus.codec import encode
from gangline_bus.memory import Broker, MemoryBus
from gangline_bus.topics import TopicNames, create_topics
from gangline_quota.app import wait_for_teams
from gangline_schemas.catalog import Topic
from gangline_schemas.envelope import Envelope
from gangline_schemas.events.quota import TeamConfigured
from gangline_schemas.job import TeamConfig

NAMES = TopicNames()


@pytest.fixture
def bus() -> MemoryBus:
    bus = Broker().connect("quota")
    create_topics(bus, NAMES)
    return bus


def configured(bus: MemoryBus, config: TeamConfig) -> None:
    event = TeamConfigured(config=config, user="teams-file")
    envelope = Envelope(config.team, "/quota", datetime.now(UTC), config.team, event)
    writer = bus.writer()
    writer.send(encode(envelope, topic=NAMES.name(Topic.QUOTA)))
    writer.flush(1)


def test_all_teams_must_be_there_with_the_limits_of_the_file(bus: MemoryBus) -> None:
    wanted = (team("nlp", limit=8), team("cv", limit=4))
    polls = iter([False, False, True])
    configured(bus, team("nlp", limit=8))
    configured(bus, team("cv", limit=2))
    assert not wait_for_teams(bus, NAMES, wanted, lambda: next(polls))
    configured(bus, team("cv", limit=4))
    assert wait_for_teams(bus, NAMES, wanted, lambda: False)


def test_without_teams_there_is_nothing_to_wait_for(bus: MemoryBus) -> None:
    assert wait_for_teams(bus, NAMES, (), lambda: False)
