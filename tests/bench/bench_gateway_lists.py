"""How fast the gateway answers lists at design size, over HTTP, while it folds.

12,000 jobs (10,000 of them ended, 500 run, 1,500 wait) and 1,250 nodes of 8 GPUs, each of which
sends a heartbeat a second; 50 changes of jobs a second. One client asks for one list after the
other.
- `_p50_ms`, `_p99_ms`: the time from a request to its whole answer.
- `_cpu_p99_ms`: the CPU time of an answer, its client's included, while nothing else runs: it
  says the same on a busy machine.
"""

from __future__ import annotations

import gc
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
from harness import Context, Result, scratch

from gangline_bus.codec import encode
from gangline_bus.ports import OutRecord
from gangline_schemas.base import Event
from gangline_schemas.catalog import Topic, topic_of
from gangline_schemas.envelope import Envelope, LogPosition
from gangline_schemas.events.heartbeats import GangStatus, GpuStatus, RankStatus, WorkerHeartbeat
from gangline_schemas.events.quota import TeamConfigured
from gangline_schemas.events.scheduling import (
    JobQueued,
    JobStateChanged,
    JobWaiting,
    NodeAdmitted,
    ReleaseReason,
)
from gangline_schemas.job import JobSpec, JobState
from gangline_schemas.team_limits import TeamConfig
from support.builders.gangs import assigned, gang_allocated, gang_released, node_info
from support.builders.gateway import GatewayHarness, bearer, served

JOBS, RUNNING, PENDING, NODES, GPUS, TEAMS = 12_000, 500, 1_500, 1_250, 8, 20
START = datetime(2026, 1, 1, tzinfo=UTC)
LISTS = {
    "jobs": "/v1/training-jobs",
    "jobs_late_page": "/v1/training-jobs?cursor={middle}",
    "jobs_no_match": "/v1/training-jobs?name=nothing-is-named-so",
    "nodes": "/v1/nodes",
    "queue": "/v1/queue",
    "teams": "/v1/teams",
}


class Cluster:
    """Sends what is there, then what changes."""

    def __init__(self, harness: GatewayHarness) -> None:
        self._harness = harness
        self._writer = harness.bus.writer()
        self._sent = 0
        self._decided: dict[Topic, int] = {}
        self.specs = [
            JobSpec.model_validate(
                {
                    "name": f"llama-sft-{index}",
                    "team": f"team-{index % TEAMS:02d}",
                    "command": ["python", "-m", "x"],
                    "resources": {"gpus": 4},
                    "hyperparameters": {"lr": 3e-4, "steps": 1000},
                }
            )
            for index in range(100)
        ]

        self._beats = [
            [self._record(envelope) for envelope in beats(number)] for number in range(4)
        ]

    def say(self, event: Event, subject: str, at: datetime = START) -> None:
        self._sent += 1
        envelope = Envelope(f"e-{self._sent}", "/bench", at, subject, event)
        topic = topic_of(event.type)
        if topic in {Topic.SCHEDULING, Topic.QUOTA}:
            seq = self._decided.get(topic, 0)
            envelope = replace(envelope, position=LogPosition(0, 1, seq))
            self._decided[topic] = seq + 1
        self._writer.send(self._record(envelope))

    def _record(self, envelope: Envelope) -> OutRecord:
        topic = self._harness.names.name(topic_of(envelope.data.type))
        return encode(envelope, topic=topic)

    def fill(self) -> None:
        """Teams, nodes and jobs."""
        for index in range(TEAMS):
            team = TeamConfig(team=f"team-{index:02d}", gpu_limit=600)
            self.say(TeamConfigured(config=team), team.team)
        for index in range(NODES):
            self.say(NodeAdmitted(node=node_info(f"node-{index:04d}", GPUS)), f"node-{index:04d}")
        for index in range(JOBS):
            self._job(index)

    def _job(self, index: int) -> None:
        job_id, at = f"llama-sft-{index:010d}", START + timedelta(seconds=index)
        spec = self.specs[index % len(self.specs)]
        self.say(JobQueued(job_id=job_id, spec=spec, user="ann", submitted_at=at), job_id, at)
        if index >= JOBS - PENDING:
            waits = JobWaiting(job_id=job_id, code="capacity", message="needs 4 GPUs; 0 are free")
            self.say(waits, job_id, at)
            return
        node = index % NODES
        part = assigned(f"node-{node:04d}", (0, 1, 2, 3))
        self.say(gang_allocated(job_id, spec, part), job_id, at)
        self.move(job_id, JobState.INITIALIZING, JobState.RUNNING)
        if index < JOBS - PENDING - RUNNING:
            self.move(job_id, JobState.RUNNING, JobState.SUCCEEDED)
            released = gang_released(job_id, 1, at, ReleaseReason.SUCCEEDED, 60.0)
            self.say(released, job_id, at)

    def move(self, job_id: str, before: JobState, after: JobState) -> None:
        change = JobStateChanged(job_id=job_id, attempt=1, previous=before, state=after)
        self.say(change, job_id)

    def second(self, number: int) -> Iterator[None]:
        """A heartbeat of each node and 50 changes, in 50 parts."""
        for part in range(50):
            for record in self._beats[number % len(self._beats)][part::50]:
                self._writer.send(record)
            job = f"llama-sft-{JOBS - PENDING + (50 * number + part) % PENDING:010d}"
            self.say(JobWaiting(job_id=job, code="capacity", message=f"waits, {number}"), job)
            yield


def beats(number: int) -> Iterator[Envelope]:
    """A round of heartbeats, made beforehand: a gateway does not pay for its nodes."""
    for index in range(NODES):
        data = heartbeat(index, number)
        yield Envelope(f"b-{number}-{index}", "/bench", START, data.node_id, data)


def heartbeat(index: int, number: int) -> WorkerHeartbeat:
    ranks = tuple(RankStatus(rank=rank, pid=rank + 1, step=number) for rank in range(4))
    return WorkerHeartbeat(
        node_id=f"node-{index:04d}", incarnation="i", sequence=number, sent_at=datetime.now(UTC),
        gpus=tuple(
            GpuStatus(index=gpu, utilization=98.0, memory_used_gb=70.1, temperature_c=61.0)
            for gpu in range(GPUS)
        ),
        gangs=(GangStatus(job_id=f"llama-sft-{index:010d}", attempt=1, ranks=ranks),),
    )  # fmt: skip


@contextmanager
def living(cluster: Cluster) -> Iterator[None]:
    """The cluster runs in a thread for the length of the block."""
    over = threading.Event()

    def live() -> None:
        number = 0
        while not over.is_set():
            number += 1
            for _ in cluster.second(number):
                over.wait(0.02)

    thread = threading.Thread(target=live, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def ask(
    client: httpx.Client, path: str, count: int, clock_s: Callable[[], float] = time.perf_counter
) -> list[float]:
    """Milliseconds of so many answers."""
    taken = []
    for _ in range(count):
        began_s = clock_s()
        answer = client.get(path, headers=bearer("admin"))
        answer.raise_for_status()
        taken.append((clock_s() - began_s) * 1e3)
    return taken


def p99(taken: list[float]) -> float:
    return statistics.quantiles(taken, n=100, method="inclusive")[98]


def measured(context: Context, folder: Path) -> Iterator[Result]:
    harness = GatewayHarness(folder, deciding=False)
    cluster = Cluster(harness)
    cluster.fill()
    with served(harness) as client:
        harness.wait(lambda: len(harness.tail.view().jobs) == JOBS)
        middle = f"{int(START.timestamp() + JOBS / 2) * 1000}.z"
        gc.collect()
        gc.freeze()  # as the gateway's process does
        paths = {name: path.format(middle=middle) for name, path in LISTS.items()}
        for name, path in paths.items():
            cpu_ms = ask(client, path, context.repeats(200, 40), time.process_time)
            yield context.result(f"gateway_{name}_cpu_p99_ms", p99(cpu_ms), "ms")
        with living(cluster):
            for name, path in paths.items():
                taken = ask(client, path, context.repeats(300, 40))
                note = f"n={len(taken)}, {min(taken):.0f}..{max(taken):.0f} ms"
                yield context.result(
                    f"gateway_{name}_p50_ms", statistics.median(taken), "ms", note=note
                )
                yield context.result(f"gateway_{name}_p99_ms", p99(taken), "ms", note=note)


def run(context: Context) -> list[Result]:
    """Each list in turn."""
    with scratch() as folder:
        return [*measured(context, folder)]


if __name__ == "__main__":
    sys.exit("use: python tests/bench/run.py --only gateway_lists")
