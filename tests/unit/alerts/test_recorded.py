"""What the other services say in simulated clusters: followed exactly, and replayed equally."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from gangline_alerts.core.policy.rules import (
    FailedJobs,
    FailedSaves,
    NodeFailures,
    QueueWait,
    Rules,
)
from gangline_alerts.core.snapshot import codec
from gangline_bus.codec import Received, receive
from gangline_schemas.events.faults import NodeFailed
from gangline_schemas.events.scheduling import JobStateChanged
from gangline_schemas.job import JobState
from gangsim.draw import draw
from gangsim.parts import Parts
from gangsim.world import World
from support.builders.alerts import AlertsRun

EAGER = Rules(
    queue_wait=QueueWait(above_s=5, priority_below=100),
    failed_jobs=FailedJobs(above=0.01, at_least=1),
    failed_saves=FailedSaves(above=0.01, at_least=1),
    node_failures=NodeFailures(above=0),
)


def recorded(seed: int, run: AlertsRun) -> list[tuple[datetime, Received]]:
    """What was written to the topics that the service reads, in the order of its time."""
    world = World(draw(seed), Parts())
    assert not world.run().violation
    found = []
    for topic in (*run.decider.inputs, *run.decider.signals):
        for record in world.broker.dump(world.names.name(topic)):
            at = datetime.fromtimestamp(record.timestamp_ms / 1000, tz=UTC)
            found.append((at, receive(record)))
    return sorted(found, key=lambda item: item[0])


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_recorded_cluster_is_followed_and_replayed(seed: int) -> None:
    run = AlertsRun(EAGER)
    records = recorded(seed, run)
    run.now = records[0][0]
    run.settle()
    for number, (at, received) in enumerate(records):
        run.now = max(run.now, at)
        run.take(received)
        if number % 20 == 0:
            run.tick(0.5)
        if number % 200 == 0:
            run.take_over()  # it compares the states
    run.tick(1)
    events = [received.envelope.data for _, received in records]
    changes = [event for event in events if isinstance(event, JobStateChanged)]
    failed = sum(event.state is JobState.FAILED for event in changes)
    nodes = sum(isinstance(event, NodeFailed) and event.reason == "silent" for event in events)
    assert sum(hour.failed for hour in run.state.hours.values()) == failed
    assert sum(hour.node_failures for hour in run.state.hours.values()) == nodes
    assert run.state.jobs == {}, "all have ended"
    assert run.state.totals.get("held", 0) == 0
    kept = codec().load(codec().dump(codec().copy(run.state)))
    assert run.fingerprint(kept) == run.fingerprint(run.state)
