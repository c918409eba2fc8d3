"""What 10,000 nodes cost the fault manager: each sends a heartbeat a second, then comes a Tick.

8 ranks and 8 GPUs a node, in gangs of 64, of 4 and of 1 nodes. One heartbeat in ten carries a new
reading of the node's health, as agents send it. Measured is this thread's CPU time for records as
they come from Kafka's client: read, validated, observed, and one Tick.

The figure that has a budget compares with the same machine reading the same bytes as JSON alone.
"""

from __future__ import annotations

import gc
import json
import time
from datetime import UTC, datetime, timedelta

from harness import Context, Result

from gangline_bus.codec import Received, encode, receive
from gangline_bus.decision import Observed, Tick
from gangline_bus.ports import Record
from gangline_faults.core.decide import FaultDecider
from gangline_faults.core.state import FaultState
from gangline_schemas.base import Event
from gangline_schemas.catalog import topic_of
from gangline_schemas.envelope import Envelope
from gangline_schemas.events.heartbeats import (
    GangStatus,
    GpuHealth,
    GpuStatus,
    NodeHealth,
    RankActivity,
    RankStatus,
    WorkerHeartbeat,
)
from gangline_schemas.events.workers import NodeJoined
from gangline_service.deciding import settle_collector
from support.builders.gangs import gang_allocated, node_info, spread
from support.harnesses.log_watch import job_spec

NODES, GPUS = 10_000, 8
READING_EVERY = 10
START = datetime(2026, 1, 1, tzinfo=UTC)


class Cluster:
    """A fault manager that watches so many nodes, and their heartbeats as records."""

    def __init__(self, nodes: int) -> None:
        self._decider = FaultDecider()
        self._state: FaultState = self._decider.initial()
        self._soft = self._decider.initial_soft()
        self._now = START
        self._jobs: list[str] = []
        for number in range(nodes):
            self.give(NodeJoined(node=node_info(f"n{number}", 0)))
        sizes = [64] * (nodes // 160) + [4] * (nodes // 16)
        while len(self._jobs) < nodes:
            first, size = len(self._jobs), sizes.pop() if sizes else 1
            size = min(size, nodes - first)
            job_id = f"job-{first}"
            self._jobs += [job_id] * size
            places = spread([f"n{number}" for number in range(first, first + size)], GPUS)
            self.give(gang_allocated(job_id, job_spec("train"), *places))

    def records(self, second: int) -> list[Record]:
        """What the nodes send in this second."""
        sent_at = START + timedelta(seconds=second)
        found, first = [], 0
        for number, job_id in enumerate(self._jobs):
            if job_id != self._jobs[first]:
                first = number
            beat = heartbeat(number, job_id, (number - first) * GPUS, second, sent_at)
            envelope = Envelope(
                f"beat-{number}-{second}", f"/agent/n{number}", sent_at, f"n{number}", beat
            )
            out = encode(envelope, topic=topic_of(beat.type).value)
            found.append(Record(out.topic, number % 4, second, out.key, out.value, out.headers, 0))
        return found

    def listen(self, records: list[Record]) -> float:
        """A second of listening; this thread's CPU seconds."""
        self._now += timedelta(seconds=1)
        began_s = time.thread_time()
        for record in records:
            self._observe(receive(record))
        self._observe(Tick())
        assert list(self._decider.decide(self._state, self._soft, Tick(), self._now)) == []
        return time.thread_time() - began_s

    def give(self, event: Event) -> None:
        """One event from outside."""
        envelope = Envelope("id", "/bench", self._now, "subject", event)
        item = Received(envelope, topic_of(event.type).value, 0, 0)
        for decision in self._decider.decide(self._state, self._soft, item, self._now):
            self._state = self._decider.evolve(self._state, decision, self._now)
            self._observe(decision)

    def _observe(self, observed: Observed) -> None:
        self._soft = self._decider.observe(self._state, self._soft, observed, self._now)


def heartbeat(
    number: int, job_id: str, first_rank: int, second: int, sent_at: datetime
) -> WorkerHeartbeat:
    """All ranks train."""
    ranks = tuple(
        RankStatus(
            rank=first_rank + index,
            pid=1000 + index,
            step=100 + second,
            activity=RankActivity.TRAINING,
            quiet_s=0.4,
            step_p99_s=1.2,
            busy_s=0.9 + 0.001 * ((number + second) % 7),
        )
        for index in range(GPUS)
    )
    return WorkerHeartbeat(
        node_id=f"n{number}",
        incarnation="i",
        sequence=second,
        sent_at=sent_at,
        gangs=(GangStatus(job_id=job_id, attempt=1, ranks=ranks),),
        gpus=tuple(
            GpuStatus(index=index, utilization=98.0, memory_used_gb=70.1, temperature_c=61.0)
            for index in range(GPUS)
        ),
        cpu_percent=12.0,
        memory_used_gb=300.0,
        health=reading(sent_at) if (number + second) % READING_EVERY == 0 else None,
    )


def reading(read_at: datetime) -> NodeHealth:
    """A healthy node."""
    return NodeHealth(
        read_at=read_at,
        gpus=tuple(
            GpuHealth(
                index=index,
                temperature_c=61.0,
                slowdown_c=90.0,
                ecc_corrected=0,
                ecc_uncorrected=0,
                nvlink_errors=0,
            )
            for index in range(GPUS)
        ),
        disk_free_gb=1000.0,
        disk_write_s=0.001,
        memory_available_gb=900.0,
        clock_synced=True,
        clock_error_s=0.001,
    )


def parsed(records: list[Record]) -> float:
    """CPU seconds of reading the same bytes as plain JSON: what this machine does at least."""
    began_s = time.thread_time()
    for record in records:
        json.loads(record.value)
    return time.thread_time() - began_s


def run(context: Context) -> list[Result]:
    """CPU seconds for one second of heartbeats, and over reading them as JSON."""
    cluster = Cluster(NODES)
    seconds = [cluster.records(second) for second in range(3)]
    thresholds = gc.get_threshold()
    settle_collector()
    try:
        cluster.listen(seconds[0])  # the first of each node is kept, not replaced
        costs, ratios = [], []
        for turn in range(context.repeats(9, 3)):
            records = seconds[turn % len(seconds)]
            plain_s, cost_s = parsed(records), cluster.listen(records)
            costs.append(cost_s)
            ratios.append(cost_s / plain_s)
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()
    return [
        context.median("heartbeats_10000_cpu_s", costs, "s", note="of a second at 1 Hz"),
        context.median("heartbeats_over_json", ratios, "x"),
    ]
