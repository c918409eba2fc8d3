"""A feature is enabled once all parts, and where it concerns them all agents, know it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from builders_deciding import team
from builders_scheduler import node
from gangline_bus.codec import Received, decode, encode
from gangline_bus.decision import Decision, Input, Tick
from gangline_bus.ports import Record
from gangline_scheduler.decide import Scheduler
from gangline_schemas.base import Event
from gangline_schemas.catalog import topic_of
from gangline_schemas.envelope import Envelope
from gangline_schemas.events.checkpoints import CheckpointDeleted
from gangline_schemas.events.faults import NodeSuspected
from gangline_schemas.events.quota import TeamConfigured
from gangline_schemas.events.workers import NodeJoined
from gangline_schemas.features import FEATURES, RELEASE, Feature

START = datetime(2026, 11, 21, 8, 0, tzinfo=UTC)
SAID: dict[str, Event] = {
    "quota": TeamConfigured(config=team("nlp")),
    "fault-manager": NodeSuspected(node_id="n9", incarnation="i", silent_s=9.0),
    "checkpoint-service": CheckpointDeleted(job_id="x", attempt=1, step=1, reason="old"),
}


class Led:
    """A scheduler and its state."""

    def __init__(self, *features: Feature) -> None:
        self.scheduler = Scheduler(features=features)
        self.state = self.scheduler.initial()
        self.decided: list[str] = []

    def give(self, item: Input) -> None:
        decisions: Sequence[Decision] = self.scheduler.decide(self.state, item, START)
        for decision in decisions:
            self.state = self.scheduler.evolve(self.state, decision, START)
            self.decided.append(decision.event.type)

    def hear(self, event: Event, release: str | None = None) -> None:
        envelope = Envelope("e", "/gangline/x/y", START, "s", event, release=release)
        self.give(Received(envelope, topic_of(event.type), 0, 0))

    def all_run(self, release: str) -> None:
        for event in SAID.values():
            self.hear(event, release)
        self.give(Tick())

    @property
    def enabled(self) -> list[str]:
        return list(self.state.features)


def test_a_release_is_noted_when_it_changes() -> None:
    led = Led()
    for release in ("0.1.0", "0.1.0", "0.2.0", "0.2.0", "0.1.0"):
        led.hear(SAID["quota"], release)
    assert led.decided.count("part.noted") == 3
    assert led.state.parts == {"quota": "0.1.0"}


def test_who_is_no_service_announces_nothing() -> None:
    led = Led()
    led.hear(NodeJoined(node=node("n1")), "9.9.9")
    led.hear(SAID["quota"])
    assert led.state.parts == {}


@pytest.mark.parametrize("late", SAID)
def test_every_part_must_know_it(late: str) -> None:
    led = Led(Feature("pause", "0.2.0"))
    led.give(Tick())
    for part, event in SAID.items():
        led.hear(event, "0.1.9" if part == late else "0.10.0")
    led.give(Tick())
    assert led.enabled == []
    led.hear(SAID[late], "0.2.0")
    led.give(Tick())
    led.give(Tick())
    assert led.enabled == ["pause"]
    assert led.decided.count("feature.enabled") == 1


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


@pytest.mark.parametrize("release", ["", "x" * 65, "0.2\n", "0.2.0 "])
def test_what_is_no_release_is_as_none(release: str) -> None:
    event = SAID["quota"]
    out = encode(Envelope("e", "/g", START, "s", event, release="0.2.0"), topic="gangline.quota")
    headers = tuple(
        (name, release.encode() if name == "ce_ganglinerelease" else value)
        for name, value in out.headers
    )
    record = Record(out.topic, 0, 0, out.key, out.value, headers, 0)
    assert decode(record).release is None
    assert decode(replace(record, headers=out.headers)).release == "0.2.0"


def test_a_release_without_a_number_knows_nothing() -> None:
    feature = Feature("pause", "0.2.0")
    assert not feature.known_to(["dev"])
    assert not feature.known_to([None])
    assert feature.known_to(["0.2.0", "1.0"])


def test_this_release_knows_its_own_features() -> None:
    assert all(feature.known_to([RELEASE]) for feature in FEATURES)
