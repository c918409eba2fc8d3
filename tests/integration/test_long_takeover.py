"""On a real Kafka: takeovers longer than its limits, and offsets that it forgot."""

from __future__ import annotations

import threading
import time
import uuid
from datetime import UTC, datetime
from typing import Any

import pytest
import structlog
from opentelemetry.metrics import get_meter
from opentelemetry.trace import get_tracer

from gangline.local import kafka_storage
from gangline.local.kafka import EmbeddedKafka
from gangline_bus.codec import decode, encode
from gangline_bus.decider import DeciderLoop
from gangline_bus.decision import Decision
from gangline_bus.kafka import KafkaBus
from gangline_bus.loop_settings import LoopSettings
from gangline_bus.ports import Record, TopicPartition
from gangline_bus.topics import TopicNames, create_topics
from gangline_quota.core.decide import Quota
from gangline_quota.core.snapshot import codec
from gangline_quota.core.state import State
from gangline_schemas.catalog import Topic
from gangline_schemas.envelope import Envelope
from gangline_schemas.events.admin import TeamConfigureRequested
from gangline_schemas.team_limits import TeamConfig
from gangline_service import deciding
from gangline_service.health import Health
from gangline_service.lifecycle import Context
from gangline_service.settings import DecidingSettings, ServiceSettings
from support.waiting import wait_until

pytestmark = pytest.mark.nightly
TEAMS = 40
MAX_POLL_S = 6
DEADLINE_S = 120.0
FORGOTTEN_AFTER_S = 60
"""The shortest `offsets.retention.minutes`, in seconds."""


class SlowQuota(Quota):
    """Folds its log in more than twice the time for which Kafka waits for a poll."""

    def evolve(self, state: State, decision: Decision, at: datetime) -> State:
        time.sleep(2.2 * MAX_POLL_S / TEAMS)
        return super().evolve(state, decision, at)


def ask(bus: KafkaBus, names: TopicNames, team: str, limit: int) -> None:
    """A user asks for a limit of GPUs."""
    event = TeamConfigureRequested(config=TeamConfig(team=team, gpu_limit=limit))
    envelope = Envelope(uuid.uuid4().hex, "/test", datetime.now(UTC), team, event)
    writer = bus.writer()
    writer.send(encode(envelope, topic=names.name(Topic.ADMIN)))
    assert writer.flush(DEADLINE_S) == 0


def own_log(bus: KafkaBus, names: TopicNames) -> list[Envelope]:
    """Quota's decisions that are committed."""
    place = TopicPartition(names.name(Topic.QUOTA), 0)
    reader = bus.reader("look")
    reader.assign({place: 0})
    found: list[Record] = []
    while reader.positions()[place] < bus.end_offsets([place])[place]:
        found += reader.poll(1000, 0.2)
    reader.close()
    return [decode(record, own=True) for record in found]


def lead(
    bus: KafkaBus, names: TopicNames, events: int, *, refresh_s: float = 3600.0
) -> DeciderLoop[State]:
    """A leader that has decided so much."""
    settings = LoopSettings(offsets_refresh_s=refresh_s)
    loop = DeciderLoop(bus, Quota(), lambda: datetime.now(UTC), names=names, settings=settings)
    loop.take_over()

    def decided() -> bool:
        loop.cycle(0.1)
        return loop.next_seq >= events

    wait_until(f"{events} events", decided)
    return loop


def test_a_takeover_longer_than_kafka_waits_for_a_poll(
    kafka: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process keeps its shard, and decides what came after the fold."""
    names = TopicNames(f"long-{uuid.uuid4().hex[:8]}.")
    bus = KafkaBus(kafka.bootstrap, client="test")
    create_topics(bus, names)
    for number in range(TEAMS):
        ask(bus, names, f"t{number}", 1)
    lead(bus, names, TEAMS).close()

    mains: list[Any] = []
    monkeypatch.setattr(deciding, "run", lambda _name, _settings, main: mains.append(main))
    settings = DecidingSettings(
        bootstrap_servers=kafka.bootstrap,
        topic_prefix=names.prefix,
        kafka={
            "max.poll.interval.ms": str(MAX_POLL_S * 1000),
            "session.timeout.ms": str(MAX_POLL_S * 1000),
        },
    )
    deciding.run_decider("quota", settings, SlowQuota(), codec())
    stopping, health = threading.Event(), Health()
    context = Context(
        settings=ServiceSettings(), health=health, stopping=stopping, log=structlog.get_logger(),
        meter=get_meter("test"), tracer=get_tracer("test"),
    )  # fmt: skip
    ended: list[object] = []

    def process() -> None:
        try:
            ended.append(mains[0](context))
        except Exception as error:
            ended.append(error)

    thread = threading.Thread(target=process)
    thread.start()
    try:
        ask(bus, names, "late", 2)
        wait_until("a late request", lambda: ended or len(own_log(bus, names)) > TEAMS)
    finally:
        stopping.set()
        thread.join(DEADLINE_S)
    assert ended == [0]
    assert [event.position.writer_epoch for event in own_log(bus, names) if event.position] == [
        *[1] * TEAMS,
        2,
    ], "it took over once"


def test_offsets_that_kafka_forgot(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A running service commits offsets of quiet inputs again; one that was away needs none."""
    forgetting = "offsets.retention.minutes=1\noffsets.retention.check.interval.ms=2000\n"
    monkeypatch.setattr(kafka_storage, "_SETTINGS", kafka_storage._SETTINGS + forgetting)
    runs, away = TopicNames("runs."), TopicNames("away.")
    with EmbeddedKafka(tmp_path) as kafka:
        bus = KafkaBus(kafka.bootstrap, client="test")

        def known(names: TopicNames) -> set[int | None]:
            group = f"{names.prefix}gangline.quota.0.inputs"
            places = names.places(bus, Topic.ADMIN)
            return {at for at in bus.committed(group, places).values() if at != 0}

        for names in (runs, away):
            create_topics(bus, names)
            for limit in (1, 2, 3):
                ask(bus, names, "a", limit)
        gone = lead(bus, away, 3)
        runner = lead(KafkaBus(kafka.bootstrap), runs, 3, refresh_s=FORGOTTEN_AFTER_S / 4)
        gone.cycle(0.1)
        gone.close()
        assert None not in known(away)

        def forgotten() -> bool:
            runner.cycle(0.1)
            return known(away) == {None}

        wait_until("Kafka forgot", forgotten)
        assert None not in known(runs)
        runner.close()
        ask(bus, away, "b", 4)
        heir = lead(KafkaBus(kafka.bootstrap), away, 4)
        for _ in range(20):
            heir.cycle(0.1)
        teams = {team: held.gpu_limit for team, held in heir.state.teams.items()}
        assert (heir.next_seq, teams) == (4, {"a": 3, "b": 4})
        heir.close()
