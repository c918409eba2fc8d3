"""What the other services say in simulated clusters: followed exactly, and replayed equally.

Figures of a recording are computed from its records alone. Each rule is judged with a threshold a
little below and a little above them.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache

import pytest

from gangline_alerts.core.policy.rules import (
    ClusterUtilization,
    FailedJobs,
    FailedSaves,
    NodeFailures,
    QueueWait,
    Rule,
    Rules,
)
from gangline_alerts.core.snapshot import codec
from gangline_bus.codec import Received, receive
from gangline_schemas.events.alerts import AlertRaised
from gangline_schemas.events.checkpoints import CheckpointAbandoned, CheckpointCommitted
from gangline_schemas.events.faults import NodeFailed, NodeLeft
from gangline_schemas.events.scheduling import (
    GangAllocated,
    GangReleased,
    JobQueued,
    JobStateChanged,
    NodeAdmitted,
)
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


@cache
def recorded(seed: int) -> list[tuple[datetime, Received]]:
    """What was written to the topics that the service reads, in the order of its time."""
    run = AlertsRun(EAGER)
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
    records = recorded(seed)
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


@dataclass
class Figures:
    """What a recording has."""

    failed_jobs: float = 0.0
    """Of the jobs that ended."""
    failed_nodes: int = 0
    failed_saves: float = 0.0
    """Of the saves of gangs that had their GPUs."""
    busiest: float = 0.0
    """The largest share of the offered GPUs that gangs had."""
    longest_wait_s: float = 0.0
    ended: int = 0
    saves: int = 0


def figures(records: list[tuple[datetime, Received]]) -> Figures:
    found, offered, waiting = Figures(), dict[str, int](), dict[str, datetime]()
    held: dict[str, tuple[int, int]] = {}  # attempt and GPUs, by job
    failed = unsaved = 0
    for at, received in records:
        match event := received.envelope.data:
            case NodeAdmitted():
                offered[event.node.node_id] = len(event.node.gpus)
            case NodeFailed() | NodeLeft():
                offered.pop(event.node_id, None)
                found.failed_nodes += isinstance(event, NodeFailed) and event.reason == "silent"
            case JobQueued():
                waiting[event.job_id] = at
            case GangAllocated():
                gpus = sum(len(node.gpus) for node in event.nodes)
                held[event.job_id] = event.attempt, gpus
                waited = at - waiting.pop(event.job_id, at)
                found.longest_wait_s = max(found.longest_wait_s, waited.total_seconds())
            case GangReleased():
                held.pop(event.job_id, None)
            case JobStateChanged(state=JobState.PENDING):
                waiting.setdefault(event.job_id, at)
            case JobStateChanged(state=JobState.SUCCEEDED | JobState.FAILED):
                found.ended += 1
                failed += event.state is JobState.FAILED
            case CheckpointCommitted():
                found.saves += 1
            case CheckpointAbandoned():
                is_live = held.get(event.job_id, (0, 0))[0] == event.attempt
                found.saves += is_live
                unsaved += is_live
        in_use = sum(gpus for _, gpus in held.values())
        found.busiest = max(found.busiest, in_use / max(1, sum(offered.values())))
    found.failed_jobs = failed / max(1, found.ended)
    found.failed_saves = unsaved / max(1, found.saves)
    return found


def raised(records: list[tuple[datetime, Received]], **rule: Rule) -> int:
    """How many alerts this one rule raises over the recording, judged each second."""
    off = {name: {"enabled": False} for name in Rules.model_fields if name not in {"teams", *rule}}
    run = AlertsRun(Rules.model_validate({**off, **rule}))
    run.now = records[0][0]
    run.settle()
    for at, received in records:
        while (at - run.now).total_seconds() >= 1:
            run.tick(1)
        run.take(received)
    run.pass_time(90)
    return len(run.events(AlertRaised))


@pytest.mark.parametrize(("share", "alerts"), [(0.99, 1), (1.01, 0)], ids=["below", "above"])
def test_each_rule_is_raised_by_what_was_recorded(share: float, alerts: int) -> None:
    busy, waits, silent = (recorded(seed) for seed in (5, 6, 4))
    had = figures(busy)
    assert 0 < had.failed_jobs < 1
    failing = FailedJobs(above=had.failed_jobs * share, at_least=had.ended)
    assert raised(busy, failed_jobs=failing) == alerts
    assert 0 < had.failed_saves < 1
    lost = FailedSaves(above=had.failed_saves * share, at_least=had.saves)
    assert raised(busy, failed_saves=lost) == alerts
    assert 0 < had.busiest < 1
    whole_s = (busy[-1][0] - busy[0][0]).total_seconds()
    idle = ClusterUtilization(below=had.busiest / share, for_s=whole_s, gpus_at_least=1)
    assert raised(busy, cluster_utilization=idle) == alerts
    longest = figures(waits).longest_wait_s
    assert longest > 20
    late = QueueWait(above_s=longest - 1.5 if alerts else longest + 0.5, priority_below=100)
    assert raised(waits, queue_wait=late) == alerts
    failures = figures(silent).failed_nodes
    assert failures
    assert raised(silent, node_failures=NodeFailures(above=failures - alerts)) == alerts
