"""Each service's state comes back exactly: the same fingerprint, the same further decisions."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any, NamedTuple

import pytest

from gangline_bus.decision import Decider, Decision, Tick
from gangline_bus.fold import Folded, fold_record
from gangline_bus.ports import Record
from gangline_bus.snapshot import SnapshotCodec, SnapshotHeader, pack, unpack
from gangline_checkpoints.core import snapshot as checkpoints_snapshot
from gangline_checkpoints.core.decide import CheckpointDecider
from gangline_checkpoints.core.snapshot import fingerprint as checkpoints_fingerprint
from gangline_faults.core import snapshot as faults_snapshot
from gangline_faults.core.decide import FaultDecider
from gangline_faults.core.snapshot import fingerprint as faults_fingerprint
from gangline_quota.core import snapshot as quota_snapshot
from gangline_quota.core.snapshot import fingerprint as quota_fingerprint
from gangline_scheduler.core import snapshot as scheduler_snapshot
from gangline_scheduler.core.decide import Scheduler
from gangline_scheduler.core.snapshot import fingerprint as scheduler_fingerprint
from gangline_schemas.catalog import Topic
from gangsim.draw import draw
from gangsim.parts import Parts
from gangsim.world import World
from golden.scenario import START, Scenario

CODECS: dict[str, SnapshotCodec[Any]] = {
    "scheduler": scheduler_snapshot.codec(Scheduler().initial),
    "quota": quota_snapshot.codec(),
}
HEADER = SnapshotHeader(
    format=1,
    state=1,
    form="f",
    service="s",
    shard=0,
    next_seq=1,
    writer_epoch=1,
    offset=0,
    last="l",
)


def through_bytes(codec: SnapshotCodec[Any], state: Any) -> Any:
    """The state that an heir has from a snapshot."""
    _, lines = unpack(pack(HEADER, codec.dump(codec.copy(state))))
    return codec.load(lines)


MORE = [pytest.param(seed, marks=pytest.mark.nightly) for seed in range(3, 16)]


@pytest.mark.parametrize("seed", [*range(3), *MORE])
def test_scheduler_and_quota_decide_on_alike(seed: int) -> None:
    lived, restored = Scenario(seed), Scenario(seed)
    for events in range(60, 600, 60):
        lived.run(events)
        restored.run(events)
        for name, codec in CODECS.items():
            restored.states[name] = through_bytes(codec, restored.states[name])
        prints = [
            (scheduler_fingerprint(it.states["scheduler"]), quota_fingerprint(it.states["quota"]))
            for it in (lived, restored)
        ]
        assert prints[0] == prints[1]
    assert restored.logs == lived.logs


class Soft(NamedTuple):
    """A service whose log the simulation writes."""

    topic: Topic
    decider: Decider[Any, Any]
    codec: SnapshotCodec[Any]
    fingerprint: Any


SERVICES = (
    Soft(Topic.FAULTS, FaultDecider(), faults_snapshot.codec(), faults_fingerprint),
    Soft(
        Topic.CHECKPOINTS,
        CheckpointDecider(),
        checkpoints_snapshot.codec(),
        checkpoints_fingerprint,
    ),
)


@pytest.fixture(scope="module")
def logs() -> dict[Topic, list[list[Record]]]:
    """What some simulated platforms with failures decided."""
    found: dict[Topic, list[list[Record]]] = {service.topic: [] for service in SERVICES}
    for seed in (1, 2, 3):
        world = World(draw(seed), Parts())
        assert not world.run().violation
        for topic, held in found.items():
            held.append(world.broker.dump(world.names.name(topic)))
    return found


@pytest.mark.parametrize("service", SERVICES, ids=lambda service: service.decider.name)
def test_any_place_of_the_log_can_be_gone_on_from(
    service: Soft, logs: dict[Topic, list[list[Record]]]
) -> None:
    for log in logs[service.topic]:
        assert len(log) > 5
        for folded, rest in _places(service.decider, log, step=7):
            heir = Folded(
                through_bytes(service.codec, folded.state), folded.next_seq, folded.writer_epoch
            )
            assert service.fingerprint(heir.state) == service.fingerprint(folded.state)
            for each in (folded, heir):
                for record in rest:
                    fold_record(service.decider, each, record)
            assert service.fingerprint(heir.state) == service.fingerprint(folded.state)
            soft, decider = service.decider.initial_soft(), service.decider
            assert decider.effects(heir.state, soft) == decider.effects(folded.state, soft)
            assert _ticks(service.decider, heir.state) == _ticks(service.decider, folded.state)


def test_what_came_after_the_copy_is_not_in_it(logs: dict[Topic, list[list[Record]]]) -> None:
    for service in SERVICES:
        log = logs[service.topic][0]
        for folded, rest in _places(service.decider, log, step=7):
            before = service.fingerprint(folded.state)
            facts = service.codec.copy(folded.state)
            for record in rest:
                fold_record(service.decider, folded, record)
            assert service.fingerprint(service.codec.load(service.codec.dump(facts))) == before


def _places(
    decider: Decider[Any, Any], log: list[Record], *, step: int
) -> Iterator[tuple[Folded[Any], list[Record]]]:
    for count in range(0, len(log), max(1, len(log) // step)):
        folded = Folded(decider.initial())
        for record in log[:count]:
            fold_record(decider, folded, record)
        yield folded, log[count:]


def _ticks(decider: Decider[Any, Any], state: Any) -> list[Decision]:
    found: list[Decision] = []
    soft = decider.initial_soft()
    for minutes in (0, 1, 60):
        now = START + timedelta(days=400, minutes=minutes)
        soft = decider.observe(state, soft, Tick(), now)
        found += decider.decide(state, soft, Tick(), now)
    return found
