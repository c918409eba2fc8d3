"""A feature is enabled once all parts, and where it concerns them all agents, know it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest

from gangline_bus.codec import Received
from gangline_bus.decision import Decision, Input, Tick
from gangline_scheduler.core.decide import Scheduler
from gangline_scheduler.core.rollout import PARTS, PROCESSES
from gangline_schemas.base import Event
from gangline_schemas.catalog import topic_of
from gangline_schemas.envelope import Envelope
from gangline_schemas.events.parts import PartAnnounced
from gangline_schemas.events.quota import DrainAdmitted
from gangline_schemas.events.workers import NodeJoined
from gangline_schemas.features import FEATURES, RELEASE, Feature
from support.builders.scheduler import node

START = datetime(2026, 11, 21, 8, 0, tzinfo=UTC)
LATE = [("quota", "2"), ("scheduler", "2"), ("gateway", "1"), ("tracker", "1")]
"""A standby, one that may take over here, and readers that are no deciders."""


class Led:
    """A scheduler and its state."""

    def __init__(self, *features: Feature) -> None:
        self.scheduler = Scheduler(features=features)
        self.state = self.scheduler.initial()
        self.decided: list[str] = []
        self.now = START

    def give(self, item: Input) -> None:
        decisions: Sequence[Decision] = self.scheduler.decide(self.state, None, item, self.now)
        for decision in decisions:
            self.state = self.scheduler.evolve(self.state, decision, self.now)
            self.decided.append(decision.event.type)

    def hear(self, event: Event, at: datetime | None = None) -> None:
        envelope = Envelope("e", "/gangline/x/y", at or self.now, "s", event)
        self.give(Received(envelope, topic_of(event.type), 0, 0))

    def announce(
        self, part: str, instance: str, release: str | None, at: datetime | None = None
    ) -> None:
        self.hear(PartAnnounced(part=part, instance=instance, release=release), at)

    def all_run(self, release: str) -> None:
        for part in PARTS:
            self.announce(part, "1", release)
        self.give(Tick())

    @property
    def known(self) -> dict[tuple[str, str], str]:
        return {key: part.release for key, part in self.state.parts.items()}

    @property
    def enabled(self) -> list[str]:
        return list(self.state.features)


def test_a_release_is_noted_when_it_changes() -> None:
    led = Led()
    for release in ("0.1.0", "0.1.0", "0.2.0", "0.2.0", "0.1.0"):
        led.announce("quota", "1", release)
    assert led.decided.count("part.noted") == 3
    assert led.known == {("quota", "1"): "0.1.0"}


def test_an_unchanged_release_is_noted_once_in_two_hours() -> None:
    led = Led()
    for _ in range(25):
        led.announce("quota", "1", "0.1.0")
        led.now += timedelta(hours=1)
    assert led.decided.count("part.noted") == 13


def test_what_is_no_announcement_notes_nothing() -> None:
    led = Led()
    led.hear(NodeJoined(node=node("n1")))
    assert led.known == {}


def test_who_stops_is_forgotten_at_once() -> None:
    led = Led()
    led.announce("gateway", "1", None)
    assert "part.noted" not in led.decided
    led.announce("gateway", "1", "0.1.0")
    led.announce("gateway", "1", None)
    assert led.known == {}


def test_who_is_silent_is_forgotten_when_others_announced_for_so_long() -> None:
    led = Led()
    led.announce("gateway", "crashed", "0.1.0")
    for hour in range(4):
        led.now = START + timedelta(hours=hour)
        led.announce("gateway", "2", "0.1.0")
        led.give(Tick())
        assert ("gateway", "crashed") in led.known
    led.now += timedelta(hours=1)
    led.give(Tick())
    assert ("gateway", "crashed") in led.known, "an hour without announcements is no silence"
    led.announce("gateway", "2", "0.1.0")
    assert led.known == {("gateway", "2"): "0.1.0"}


def test_the_backlog_of_an_absent_scheduler_is_nobody_s_silence() -> None:
    led = Led()
    names = [("gateway", str(number)) for number in range(3)]
    for name in names:
        led.announce(*name, "0.1.0")
    led.now += timedelta(days=2)
    for hour in range(1, 49):
        for name in names:
            led.announce(*name, "0.1.0", at=START + timedelta(hours=hour))
            assert set(led.known) == set(names)


def test_a_clock_that_is_ahead_makes_nobody_silent() -> None:
    led = Led()
    led.announce("gateway", "1", "0.1.0")
    led.announce("gateway", "2", "0.1.0", at=START + timedelta(days=9))
    assert len(led.known) == 2


@pytest.mark.parametrize("late", [(part, "1") for part in PARTS] + LATE)
def test_every_process_must_know_it(late: tuple[str, str]) -> None:
    led = Led(Feature("pause", "0.2.0"))
    led.give(Tick())
    led.announce(*late, "0.1.9")
    for part in PARTS:
        led.announce(part, "1", "0.1.9" if (part, "1") == late else "0.10.0")
    led.give(Tick())
    assert led.enabled == []
    led.announce(*late, "0.2.0")
    led.give(Tick())
    led.give(Tick())
    assert led.enabled == ["pause"]
    assert led.decided.count("feature.enabled") == 1


@pytest.mark.parametrize("absent", PARTS)
def test_each_service_must_have_announced(absent: str) -> None:
    led = Led(Feature("pause", "0.2.0"))
    led.all_run("0.2.0")
    assert led.enabled == ["pause"]
    led = Led(Feature("pause", "0.2.0"))
    for part in PARTS:
        if part != absent:
            led.announce(part, "1", "0.2.0")
    led.give(Tick())
    assert led.enabled == []


def test_it_stays_enabled_when_a_part_goes_back() -> None:
    led = Led(Feature("pause", "0.2.0"))
    led.all_run("0.2.0")
    led.all_run("0.1.0")
    assert led.enabled == ["pause"]


def test_where_it_concerns_agents_all_nodes_must_know_it() -> None:
    led = Led(Feature("pause", "0.2.0", agents=True), Feature("other", "0.2.0"))
    for release in (None, "0.2.0"):
        info = node(f"n-{release}".replace(".", "-").lower()).model_copy(
            update={"release": release}
        )
        led.hear(NodeJoined(node=info))
    led.all_run("0.2.0")
    assert led.enabled == ["other"]
    newer = node("n-none", incarnation="i2").model_copy(update={"release": "0.3.0"})
    led.hear(NodeJoined(node=newer))
    led.give(Tick())
    assert led.enabled == ["other", "pause"]


def test_an_agent_that_reloads_announces_its_new_release_and_a_drain_stays() -> None:
    led = Led(Feature("pause", "0.2.0", agents=True))
    old = node("n1").model_copy(update={"release": "0.1.0"})
    led.hear(NodeJoined(node=old))
    led.hear(DrainAdmitted(node_id="n1", drain=True, user="root"))
    led.all_run("0.2.0")
    assert led.enabled == []
    for _ in range(2):
        led.hear(NodeJoined(node=old.model_copy(update={"release": "0.2.0"})))
    led.give(Tick())
    assert led.enabled == ["pause"]
    assert led.state.nodes["n1"].drained
    assert led.decided.count("node.admitted") == 2


def test_so_many_processes_are_known_and_with_more_no_feature_is_enabled() -> None:
    led = Led(Feature("pause", "0.2.0"))
    for number in range(PROCESSES + 5):
        led.announce("gateway", str(number), "0.2.0")
    assert len(led.known) == PROCESSES
    for number in range(len(PARTS)):
        led.announce("gateway", str(number), None)
    led.all_run("0.2.0")
    assert len(led.known) == PROCESSES
    assert led.enabled == [], "a process that was not noted may lack it"
    led.announce("gateway", "10", None)
    led.give(Tick())
    assert led.enabled == ["pause"]


def test_a_release_without_a_number_knows_nothing() -> None:
    feature = Feature("pause", "0.2.0")
    assert not feature.known_to(["dev"])
    assert not feature.known_to([None])
    assert feature.known_to(["0.2.0", "1.0"])


def test_this_release_knows_its_own_features() -> None:
    assert all(feature.known_to([RELEASE]) for feature in FEATURES)
