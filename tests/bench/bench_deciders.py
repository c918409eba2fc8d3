"""Inputs per second through the decider loop, with transactions on a real broker.

The loop runs in this process as it does in a service, on a backlog of inputs.
- quota: submissions by 5 teams, each admitted: one event an input.
- scheduler: quota's own log of them on 100 nodes x 8 GPUs: as many start as fit (4 events each),
  the others queue (3 events each).
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harness import Context, Result, scratch

from gangline.local.kafka import EmbeddedKafka
from gangline_bus.codec import encode
from gangline_bus.decider import DeciderLoop
from gangline_bus.kafka import KafkaBus
from gangline_bus.topics import TopicNames, create_topics
from gangline_quota.core.decide import Quota
from gangline_scheduler.core.decide import Scheduler
from gangline_schemas.base import Event
from gangline_schemas.catalog import Topic, topic_of
from gangline_schemas.envelope import Envelope
from gangline_schemas.events.admin import TeamConfigureRequested
from gangline_schemas.events.requests import JobSubmitted
from gangline_schemas.events.workers import NodeJoined
from gangline_schemas.job import JobSpec
from gangline_schemas.team_limits import TeamConfig
from support.builders.gangs import node_info
from support.harnesses.log_watch import job_spec

TEAMS = tuple(f"team-{index}" for index in range(5))
NODES, GPUS_PER_NODE = 100, 8
TIMEOUT_S = 300.0


def publish(bus: KafkaBus, events: list[tuple[Event, str]]) -> None:
    writer = bus.writer()
    for number, (event, subject) in enumerate(events):
        envelope = Envelope(f"{subject}-{number}", "/bench", datetime.now(UTC), subject, event)
        writer.send(encode(envelope, topic=topic_of(event.type).value))
    assert writer.flush(60) == 0
    writer.close()


def start(bus: KafkaBus, decider: Any) -> DeciderLoop[Any]:
    loop: DeciderLoop[Any] = DeciderLoop(bus, decider, lambda: datetime.now(UTC))
    loop.take_over()
    return loop


@dataclass(frozen=True, slots=True)
class Took:
    """Seconds by the clock, and of this process's CPU time (librdkafka's threads included)."""

    wall_s: float
    cpu_s: float


def drain(bus: KafkaBus, loop: DeciderLoop[Any], *topics: Topic) -> Took:
    """Decide and commit everything that is on the topics."""
    places = [place for topic in topics for place in TopicNames().places(bus, topic)]
    ends = bus.end_offsets(places)
    started, cpu = time.perf_counter(), time.process_time()
    while True:
        loop.cycle(0.05)
        read = loop._reader.positions()
        wall_s = time.perf_counter() - started
        if all(read[place] >= end for place, end in ends.items()):
            return Took(wall_s, time.process_time() - cpu)
        assert wall_s < TIMEOUT_S, "the decider does not get through its inputs"


def measure(folder: Path, jobs: int) -> tuple[Took, Took]:
    """What quota and the scheduler take for so many jobs."""
    with EmbeddedKafka(folder / "kafka") as kafka:
        bus = KafkaBus(kafka.bootstrap, client="bench")
        create_topics(bus, TopicNames())
        configs = [TeamConfig(team=team, gpu_limit=1000) for team in TEAMS]
        publish(bus, [(TeamConfigureRequested(config=config), config.team) for config in configs])
        nodes = [node_info(f"node-{number}", GPUS_PER_NODE) for number in range(NODES)]
        publish(bus, [(NodeJoined(node=node), node.node_id) for node in nodes])
        quota, scheduler = start(bus, Quota()), start(bus, Scheduler())
        drain(bus, quota, Topic.ADMIN, Topic.REQUESTS)
        drain(bus, scheduler, Topic.QUOTA, Topic.WORKERS)
        specs = [job_spec("bench", team=team, resources={"gpus": 1}) for team in TEAMS]
        publish(bus, [(submitted(n, specs[n % len(specs)]), f"job-{n}") for n in range(jobs)])
        quota_took = drain(bus, quota, Topic.REQUESTS)
        scheduler_took = drain(bus, scheduler, Topic.QUOTA)
        assert len(scheduler.state.live) == NODES * GPUS_PER_NODE
        assert len(scheduler.state.jobs) == jobs
        quota.close()
        scheduler.close()
        bus.close()
    return quota_took, scheduler_took


def submitted(number: int, spec: JobSpec) -> JobSubmitted:
    return JobSubmitted(job_id=f"job-{number}", spec=spec)


def run(context: Context) -> list[Result]:
    """Both deciders over the same jobs."""
    jobs = 5000
    measured = []
    for _ in range(context.repeats(3)):
        with scratch() as folder:
            measured.append(measure(folder, jobs))
    return [
        rate(context, "quota_inputs_per_s", jobs, [quota for quota, _ in measured]),
        rate(context, "scheduler_inputs_per_s", jobs, [scheduler for _, scheduler in measured]),
    ]


def rate(context: Context, name: str, jobs: int, took: list[Took]) -> Result:
    per_cpu_s = statistics.median(jobs / one.cpu_s for one in took)
    note = f"{jobs} jobs; {per_cpu_s:,.0f} per CPU second"
    return context.median(name, [jobs / one.wall_s for one in took], "1/s", note=note)
