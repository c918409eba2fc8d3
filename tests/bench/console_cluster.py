"""A cluster at design size behind a real gateway and console, for `bench_console.py`.

Kafka, the tracker with its store, the gateway and the console are processes of their own. What
services and agents would send is written to the log. 500 running jobs have all 10,000 GPUs of 1,250
nodes; 1,000 jobs wait; a study has 200 trials. The store has the history of all runs,
the log has the newest ones. No decider runs, so nothing answers questions such as `explain`.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from multiprocessing.synchronize import Event as Started
from pathlib import Path

import psutil
import year_work
from bench_dashboards import DAYS, NOWHERE, ONE_BLOCK, TEAMS, fill_runs
from bench_gateway_lists import heartbeat
from console_automation import PIPELINE_RUN, STUDY_ID, automation

from gangline.local.kafka import EmbeddedKafka
from gangline.local.ports import pick_ports
from gangline_bus.codec import encode
from gangline_bus.kafka import KafkaBus
from gangline_bus.topics import TopicNames, create_topics
from gangline_schemas.base import Event
from gangline_schemas.catalog import Topic, topic_of
from gangline_schemas.envelope import Envelope, LogPosition
from gangline_schemas.events.progress import RunProgress, progress_key
from gangline_schemas.events.quota import TeamConfigured
from gangline_schemas.events.scheduling import JobQueued, JobStateChanged, JobWaiting, NodeAdmitted
from gangline_schemas.job import JobSpec, JobState
from gangline_schemas.team_limits import TeamConfig
from gangline_tracker.engine import Engine
from gangline_tracker.migrate import migrate
from support.harnesses.console_tour import Seeded
from support.harnesses.service_process import service_process
from support.harnesses.tracker_process import TrackerProcess

RUNNING, UNENDED, NODES = 500, 1_500, year_work.NODES
STEPS, LOG_LINES = 20_000, 100_000
METRICS = ("loss", "lr", "mfu", "tokens_per_s")
_DECIDED = (Topic.SCHEDULING, Topic.QUOTA, Topic.STUDIES, Topic.PIPELINES, Topic.REGISTRY)
_STEPS = f"""INSERT INTO gangline.steps SELECT '{{team}}', '{{job}}', 1, 0, number AS step,
now64(3) - toIntervalSecond({{steps}} - step), '{{name}}', 1 / (1 + step), {NOWHERE}, 0, now()
FROM numbers({{steps}})"""
_LOGS = f"""INSERT INTO gangline.logs SELECT '{{team}}', '{{job}}', 1, number % 8, 'node-00000',
number, now64(3) - toIntervalSecond(({{lines}} - number) / 10), 'stdout', repeat('step ', 20),
{NOWHERE}, 0, now() FROM numbers({{lines}})"""


@dataclass(frozen=True)
class Run:
    """Run `number` of `runs`, as `bench_dashboards.fill_runs` has it in the store."""

    number: int
    runs: int

    @property
    def job_id(self) -> str:
        return f"llama-sft-{self.number:010d}"

    @property
    def team(self) -> str:
        return f"team-{self.number % TEAMS}"

    @property
    def submitted_at(self) -> datetime:
        return datetime.now(UTC) - timedelta(days=DAYS) * (1 - self.number / self.runs)

    @property
    def state(self) -> JobState:
        if self.number + UNENDED > self.runs:
            return JobState.PENDING if self.number % 3 else JobState.RUNNING
        return JobState.SUCCEEDED if self.number % 25 else JobState.FAILED


def tour(runs: int) -> Seeded:
    """The jobs that the pages are about."""

    def newest(state: JobState, divisor: int = 1) -> str:
        found = (Run(n, runs) for n in range(runs - 1, 0, -1) if n % divisor == 0)
        return next(run.job_id for run in found if run.state is state)

    return Seeded(
        running=newest(JobState.RUNNING),
        waiting=newest(JobState.PENDING),
        failed=newest(JobState.FAILED, 100),  # each fourth run has an incident
        ended=newest(JobState.SUCCEEDED),
        node=year_work.node_name(0),
        study=STUDY_ID,
        pipeline_run=PIPELINE_RUN,
    )


def fill_store(folder: str, runs: int) -> None:
    """The history: all runs, and the steps and log lines of those that the pages are about."""
    client = Engine(f"chdb://{folder}").client()
    migrate(client)
    fill_runs(client, runs)
    seen = tour(runs)
    for job in (seen.running, seen.ended):
        team = Run(int(job.rpartition("-")[2]), runs).team
        for name in METRICS:
            sql = _STEPS.format(team=team, job=job, name=name, steps=STEPS)
            client.command(sql, settings=ONE_BLOCK)
        client.command(_LOGS.format(team=team, job=job, lines=LOG_LINES), settings=ONE_BLOCK)
    client.close()


@dataclass
class Log:
    """Writes what services and agents would send."""

    bus: KafkaBus
    names: TopicNames
    _next: dict[Topic, int] = field(default_factory=lambda: dict.fromkeys(_DECIDED, 0))
    _sent: int = 0

    def __post_init__(self) -> None:
        self._writer = self.bus.writer()

    def say(self, event: Event, subject: str, at: datetime, key: str | None = None) -> None:
        self._sent += 1
        topic = topic_of(event.type)
        position = partition = None
        if topic in self._next:
            position, partition = LogPosition(0, 1, self._next[topic]), 0
            self._next[topic] += 1
        envelope = Envelope(f"e-{self._sent}", "/bench", at, subject, event, position=position)
        name = self.names.name(topic)
        self._writer.send(encode(envelope, topic=name, key=key, partition=partition))

    def flush(self) -> None:
        """Wait until all that was said is on the bus."""
        assert self._writer.flush(60.0) == 0

    def fill(self, runs: int, newest: int) -> None:
        """Teams, nodes with a heartbeat each, and the newest runs."""
        now = datetime.now(UTC)
        for number in range(TEAMS):
            team = TeamConfig(team=f"team-{number}", gpu_limit=NODES * year_work.GPUS)
            self.say(TeamConfigured(config=team), team.team, now)
        for number in range(NODES):
            node = year_work.node_info(year_work.node_name(number), number)
            self.say(NodeAdmitted(node=node), node.node_id, now)
        gangs = year_work.live_gangs()
        for number in range(runs - newest, runs):
            self._run(Run(number, runs), gangs)
        for number in range(NODES):
            name = year_work.node_name(number)
            beat = heartbeat(number, 1).model_copy(update={"node_id": name, "gangs": ()})
            self.say(beat, name, now)
        automation(self.say, now)
        self.flush()

    def _run(self, run: Run, gangs: Iterator[tuple[str, JobSpec, list[str]]]) -> None:
        state, at, job = run.state, run.submitted_at, run.job_id
        gpus, nodes = 8, [year_work.node_name(run.number % NODES)]
        if state is JobState.RUNNING:
            _, _, nodes = next(gangs)
            gpus = year_work.GPUS * len(nodes)
        spec = year_work.spec_of(run.number).model_copy(update={"team": run.team})
        spec = spec.model_copy(update={"resources": spec.resources.model_copy(
            update={"gpus": gpus})})  # fmt: skip
        queued = JobQueued(job_id=job, spec=spec, user="ann", submitted_at=at)
        self.say(queued, job, at)
        if state is JobState.PENDING:
            message = "needs 8 GPUs; 0 are free"
            self.say(JobWaiting(job_id=job, code="capacity", message=message), job, at)
            return
        self.say(year_work.allocated(job, spec, nodes), job, at)
        moved = JobStateChanged(
            job_id=job, attempt=1, previous=JobState.INITIALIZING, state=JobState.RUNNING
        )
        self.say(moved, job, at)
        if state is not JobState.RUNNING:
            released, over = year_work.ended(job, 1, at)
            self.say(released, job, at)
            self.say(over.model_copy(update={"state": state}), job, at)

    def progress(self, runs: int, step: int) -> None:
        """A step of each running job."""
        now = datetime.now(UTC)
        for number in range(runs - UNENDED, runs):
            run = Run(number, runs)
            if run.state is JobState.RUNNING:
                said = RunProgress(
                    run_id=run.job_id, team=run.team, attempt=1, rank=0, step=step,
                    time_ms=int(now.timestamp() * 1000), step_s=1.0, tokens_per_s=1e5,
                    metrics={"loss": 1.5, "lr": 0.001, "mfu": 0.4}, data_wait_share=0.01,
                )  # fmt: skip
                self.say(said, run.job_id, now, progress_key(run.team, run.job_id))
        self._writer.flush(5.0)


@dataclass(frozen=True)
class Cost:
    """Of the gateway and the console together: CPU seconds so far, and memory (PSS)."""

    cpu_s: float
    memory_mb: float


@dataclass(frozen=True)
class ConsoleCluster:
    """The processes; viewers reach `url` with `token`."""

    url: str
    token: str
    log: Log
    runs: int
    bootstrap: str
    pids: tuple[int, int]
    """The gateway's and the console's."""
    tracker: int
    """The process id of the tracker, whose engine answers the gateway's queries."""

    def cost(self) -> Cost:
        found = [psutil.Process(pid) for pid in self.pids]
        cpu_s = sum(sum(one.cpu_times()[:2]) for one in found)
        return Cost(cpu_s, sum(one.memory_full_info().pss for one in found) / 1e6)

    def cpu_s(self) -> float:
        """CPU seconds so far of gateway, console and tracker."""
        found = (psutil.Process(pid).cpu_times() for pid in (*self.pids, self.tracker))
        return sum(sum(times[:2]) for times in found)

    @contextmanager
    def progressing(self) -> Iterator[None]:
        """Each running job takes a step a second, in another process, during the block."""
        spawn = multiprocessing.get_context("spawn")
        began = spawn.Event()
        arguments = (self.bootstrap, self.log.names.prefix, self.runs, int(time.time()), began)
        process = spawn.Process(target=_progress, args=arguments)
        process.start()
        try:
            assert began.wait(120), "no step was written"
            yield
        finally:
            process.kill()
            process.join()


@contextmanager
def console_cluster(folder: Path, runs: int, newest: int) -> Iterator[ConsoleCluster]:
    """All processes over fresh data; they end with the block."""
    filling = multiprocessing.get_context("spawn").Process(
        target=fill_store, args=(str(folder / "db"), runs)
    )
    filling.start()
    with ExitStack() as stack:
        kafka = stack.enter_context(EmbeddedKafka(folder / "kafka"))
        tracker = TrackerProcess(kafka.bootstrap, folder)
        stack.callback(tracker.close)
        names = TopicNames("console-")  # the tracker reads none of it: the store has it already
        bus = KafkaBus(kafka.bootstrap, client="bench")
        stack.callback(bus.close)
        create_topics(bus, names)
        log = Log(bus, names)
        log.fill(runs, newest)
        filling.join()
        assert filling.exitcode == 0, "the store could not be filled"
        tracker.start()
        gateway_port, console_port = pick_ports(2)
        url = f"http://127.0.0.1:{gateway_port}"
        environment = {
            **os.environ,
            "GANGLINE_BOOTSTRAP_SERVERS": kafka.bootstrap,
            "GANGLINE_TOPIC_PREFIX": names.prefix,
            "GANGLINE_TOKENS_FILE": str(folder / "tokens.json"),
            "GANGLINE_SERVICE_TOKEN": tracker.tokens["service"],
            "GANGLINE_CLICKHOUSE_URL": tracker.url,
            "GANGLINE_GATEWAY_PORT": str(gateway_port),
            "GANGLINE_CONSOLE_PORT": str(console_port),
            "GANGLINE_CONSOLE_URL": f"http://127.0.0.1:{console_port}",
            "GANGLINE_CONSOLE_GATEWAY_URL": url,
            # one token stands for all viewers
            "GANGLINE_REQUESTS_PER_S": "100000",
            "GANGLINE_REQUESTS_BURST": "100000",
            "GANGLINE_STREAMS_PER_USER": "1000",
            "GANGLINE_CONNECTIONS_PER_USER": "1000",
        }
        pids = (
            stack.enter_context(service_process("gateway", folder, environment)),
            stack.enter_context(service_process("console", folder, environment)),
        )
        yield ConsoleCluster(
            url, tracker.tokens["admin"], log, runs, kafka.bootstrap, pids, tracker.pid
        )


def _progress(bootstrap: str, prefix: str, runs: int, first: int, started: Started) -> None:
    """A step of each job a second, until the process is ended."""
    log = Log(KafkaBus(bootstrap, client="steps"), TopicNames(prefix))
    began = time.monotonic()
    for count in range(1, 100_000):
        log.progress(runs, first + count)
        started.set()
        time.sleep(max(0.0, began + count - time.monotonic()))
