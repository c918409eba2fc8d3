"""Quota is ready when each team of its file is configured, and not before."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from gangline_bus.codec import encode
from gangline_bus.memory import Broker, MemoryBus
from gangline_bus.topics import TopicNames, create_topics
from gangline_quota.service.app import teams_request, wait_for_teams
from gangline_schemas.base import Event
from gangline_schemas.catalog import Topic
from gangline_schemas.envelope import Envelope
from gangline_schemas.events.quota import RequestRefused, TeamConfigured
from gangline_schemas.team_limits import TeamConfig
from support.builders.deciding import team

NAMES = TopicNames()


@pytest.fixture
def bus() -> MemoryBus:
    bus = Broker().connect("quota")
    create_topics(bus, NAMES)
    return bus


def configured(bus: MemoryBus, config: TeamConfig) -> None:
    said(bus, TeamConfigured(config=config, user="teams-file"))


def said(bus: MemoryBus, event: Event) -> None:
    envelope = Envelope("id", "/quota", datetime.now(UTC), "s", event)
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


def test_why_the_file_was_refused_is_heard_and_the_wait_goes_on(bus: MemoryBus) -> None:
    wanted = (team("nlp", limit=8),)
    request = teams_request(wanted, datetime.now(UTC))
    said(bus, RequestRefused(request="r", target="t", reason="not mine", request_id="other"))
    said(bus, RequestRefused(request="r", target="t", reason="no room", request_id=request.id))
    polls, heard = iter([False, True]), list[str]()
    assert not wait_for_teams(bus, NAMES, wanted, lambda: next(polls), heard.append)
    configured(bus, wanted[0])
    assert wait_for_teams(bus, NAMES, wanted, lambda: False)
    assert heard == ["no room"]


def test_without_teams_there_is_nothing_to_wait_for(bus: MemoryBus) -> None:
    assert wait_for_teams(bus, NAMES, (), lambda: False)
