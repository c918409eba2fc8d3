"""From a trial's result to the next allocation, in a study of 1,000 trials.

Kafka and the services studies, quota and scheduler are processes of their own; this one plays the
agents of 16 nodes with one GPU each. A study of TPE has as many jobs at once as there are GPUs, so
none waits in advance: each result leads through the sampler, quota and the scheduler to the next
allocation. Results come `RATE` times a second.

- `study_reaction_p50_ms`, `_p99_ms`: from the last report and the exit of rank 0 being sent, until
  `gang.allocated` is read that gives the GPU to the next trial.
- `study_loop_held_ms`: the longest cycle of the studies service, without polls and commits;
  `study_loop_cpu_ms`: the most CPU time of one.
"""

from __future__ import annotations

import heapq
import json
import os
import random
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harness import Context, Result, scratch

from gangline.local.kafka import EmbeddedKafka
from gangline_bus.codec import encode
from gangline_bus.kafka import KafkaBus
from gangline_bus.topics import TopicNames, create_topics
from gangline_schemas.base import Event
from gangline_schemas.catalog import Topic, topic_of
from gangline_schemas.envelope import Envelope
from gangline_schemas.events.automation import StudySubmitted
from gangline_schemas.events.scheduling import GangAllocated
from gangline_schemas.events.workers import ExitReason, TrialReported, WorkerExited, WorkerStarted
from gangline_schemas.study_file import StudySpec
from support.builders.faults import joined
from support.harnesses.log_watch import LogWatch
from support.harnesses.service_process import service_process

GANGS, RATE, NAMES = 16, 3.0, 6
TIMEOUT_S = 60.0
TEAMS = "teams:\n  - {team: nlp, gpu_limit: 1000}\n"


@dataclass
class Agents:
    """Runs each gang for a random time, then reports a value and ends."""

    watch: LogWatch
    drawn: random.Random = field(default_factory=lambda: random.Random(5))
    due: list[tuple[float, str, GangAllocated]] = field(default_factory=list)
    results: list[float] = field(default_factory=list)
    allocations: list[float] = field(default_factory=list)
    at: int = 0

    def __post_init__(self) -> None:
        self._writer = self.watch.bus.writer(prompt=True)

    def say(self, event: Event, subject: str) -> None:
        """Send an event, as an agent or a user does."""
        envelope = Envelope(uuid.uuid4().hex, "/bench", datetime.now(UTC), subject, event)
        topic = self.watch.names.name(topic_of(event.type))
        self._writer.send(encode(envelope, topic=topic))

    def turn(self) -> bool:
        """Take what came, and end the gangs that are due; whether the study runs on."""
        wait_s = self.due[0][0] - time.monotonic() if self.due else 0.02
        self.watch.poll(min(max(wait_s, 0.0), 0.02))
        for seen in self.watch.seen[self.at :]:
            if isinstance(seen.data, GangAllocated):
                self._begin(seen.data)
            elif seen.type == "study.ended":
                return False
        self.at = len(self.watch.seen)
        while self.due and self.due[0][0] <= time.monotonic():
            self._end(heapq.heappop(self.due)[2])
        return True

    def _begin(self, gang: GangAllocated) -> None:
        self.allocations.append(time.monotonic())
        started = WorkerStarted(**self._rank(gang), pid=1)
        self.say(started, gang.job_id)
        after_s = GANGS / RATE * self.drawn.uniform(0.5, 1.5)
        heapq.heappush(self.due, (time.monotonic() + after_s, gang.job_id, gang))

    def _end(self, gang: GangAllocated) -> None:
        given = [float(str(value)) for value in gang.spec.hyperparameters.values()]
        values: dict[str, float | None] = {"loss": sum((value - 0.3) ** 2 for value in given)}
        reported = TrialReported(job_id=gang.job_id, attempt=gang.attempt, step=1, values=values)
        self.say(reported, gang.job_id)
        exited = WorkerExited(**self._rank(gang), reason=ExitReason.FINISHED, exit_code=0)
        self.results.append(time.monotonic())
        self.say(exited, gang.job_id)

    def _rank(self, gang: GangAllocated) -> dict[str, Any]:
        node = gang.nodes[0]
        return {
            "job_id": gang.job_id, "attempt": gang.attempt, "rank": 0,
            "node_id": node.node_id, "incarnation": node.incarnation,
        }  # fmt: skip


def spec(trials: int) -> StudySpec:
    """A study whose jobs never wait in advance."""
    return StudySpec.model_validate({
        "name": "s", "team": "nlp", "objective": {"metric": "loss"}, "sampler": "tpe", "seed": 3,
        "space": {f"x{at}": {"type": "float", "low": 0, "high": 1} for at in range(NAMES)},
        "limits": {"trials": trials, "parallel": GANGS},
        "job": {"run": "x", "resources": {"gpus": 1, "memory_per_gpu_gb": 0.1}},
    })  # fmt: skip


@contextmanager
def timed_studies(folder: Path, environment: dict[str, str]) -> Iterator[Path]:
    """The studies service; the file where its loop notes its cycles."""
    noted = folder / "cycles.json"
    program = Path(__file__).with_name("timed_studies.py")
    process = subprocess.Popen([sys.executable, program, noted], env=environment)
    try:
        yield noted
    finally:
        process.kill()
        process.wait()


@contextmanager
def cluster() -> Iterator[tuple[LogWatch, Path]]:
    """The log of Kafka with the three services, and the file of `timed_studies`."""
    with scratch() as folder, ExitStack() as stack:
        broker = stack.enter_context(EmbeddedKafka(folder / "kafka"))
        (folder / "teams.yaml").write_text(TEAMS, encoding="utf-8")
        bus = KafkaBus(broker.bootstrap, client="bench")
        create_topics(bus, TopicNames(""))
        bus.close()
        environment = {
            **os.environ,
            "GANGLINE_BOOTSTRAP_SERVERS": broker.bootstrap,
            "GANGLINE_TEAMS_FILE": str(folder / "teams.yaml"),
        }
        for name in ("quota", "scheduler"):
            stack.enter_context(service_process(name, folder, environment))
        noted = stack.enter_context(timed_studies(folder, environment))
        yield (
            stack.enter_context(LogWatch(broker.bootstrap, (Topic.SCHEDULING, Topic.STUDIES))),
            noted,
        )


def reactions(trials: int) -> tuple[list[float], dict[str, list[float]]]:
    """Milliseconds from each result to the allocation that it led to, and the loop's cycles."""
    with cluster() as (watch, noted):
        agents = Agents(watch)
        for number in range(GANGS):
            agents.say(joined(f"n{number}"), f"n{number}")
        agents.say(StudySubmitted(study_id="s", spec=spec(trials), user="ada"), "s")
        last = time.monotonic()
        while agents.turn():
            last = max([last, *agents.allocations[-1:]])
            if time.monotonic() > last + TIMEOUT_S:
                raise TimeoutError(f"{len(agents.results)} results, and no further allocation")
        cycles = json.loads(noted.read_text(encoding="utf-8"))
    assert len(agents.results) == len(agents.allocations) == trials
    after = zip(agents.results, agents.allocations[GANGS:], strict=False)
    return [(allocated - known) * 1e3 for known, allocated in after], cycles


def run(context: Context) -> list[Result]:
    """One study; with --quick of 100 trials."""
    trials = 100 if context.quick else 1000
    took, cycles = reactions(trials)
    centiles = statistics.quantiles(took, n=100, method="inclusive")
    note = f"n={len(took)}, {min(took):.0f}..{max(took):.0f} ms"
    held, cpu = ([each * 1e3 for each in cycles[name]] for name in ("clock_s", "cpu_s"))
    late = [at for at, each in enumerate(held) if each > 50]
    return [
        context.result("study_reaction_p50_ms", centiles[49], "ms", note=note),
        context.result("study_reaction_p99_ms", centiles[98], "ms", note=note),
        context.result(
            "study_loop_held_ms", max(held), "ms", note=f"of {len(held)} cycles > 50: {late}"
        ),
        context.result("study_loop_cpu_ms", max(cpu), "ms"),
    ]
