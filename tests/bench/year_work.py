"""A year of work for the `year` benchmark: runs of the mission's mix at design size, virtual time.

500 gangs at once have all 10,000 GPUs of 1,250 nodes: 5,000 runs a day, a save each ten minutes.
Each day 8 nodes fail for good, and machines with new names take their places. Of 20
runs 16 take 4 GPUs for 2 hours, 3 take 32 for a day, 1 takes 176 for a week; 1 of 11 saves nothing.

An ended run is folded by what it leaves behind, not by all that was said of it: of its saves only
those that are still kept, of its ranks' reports none. So a run is 2 to 11 events.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

from gangline_bus.codec import Received, encode
from gangline_bus.decision import Decider, Decision, EffectDone, Input, Observed, Tick
from gangline_bus.ports import Record
from gangline_schemas.base import Event
from gangline_schemas.catalog import topic_of
from gangline_schemas.checkpoint import commit_key, job_prefix
from gangline_schemas.envelope import Envelope, LogPosition
from gangline_schemas.events.checkpoints import CheckpointCommitted
from gangline_schemas.events.scheduling import (
    CheckpointRef,
    GangAllocated,
    JobStateChanged,
    ReleaseReason,
)
from gangline_schemas.events.workers import NodeInfo
from gangline_schemas.job import JobSpec, JobState
from gangline_schemas.team_limits import TeamConfig
from support.builders import gangs

START = datetime(2026, 1, 1, tzinfo=UTC)
NODES, GPUS = 1_250, 8
LIVE = ((400, 1), (75, 4), (25, 22))
"""Gangs that run, and the whole nodes of each: 80, 15 and 5 % of 500, on all 1,250 nodes."""
RUNS_A_DAY, NODES_LOST_A_DAY = 5_000, 8
SAVES_A_ROUND = 14
"""500 gangs save each 10 minutes, while one run of 5,000 a day ends."""
MONTH_DAYS, YEAR_DAYS = 32, 365
"""After 32 days each memory that the rule of gangline_schemas.memory bounds is full."""
ADDRESS = "10.0.0.1"
PENDING = 1_500
"""Runs that wait."""
TEAMS = tuple(f"team-{number:02d}" for number in range(20))
REPORTS = frozenset({"report"})
"""Ranks' reports are most inputs and the cheapest: they would only flatter the figures."""
MIX = (*((4, 2.0),) * 16, *((32, 24.0),) * 3, (176, 168.0))


@dataclass(frozen=True, slots=True)
class Run:
    """A run that has ended: `number` of the year, with what it used."""

    number: int
    spec: JobSpec
    gpus: int
    hours: float

    @property
    def job_id(self) -> str:
        return f"llama-sft-{self.number:010d}"

    @property
    def saved(self) -> bool:
        return self.number % 11 != 10

    @property
    def saves(self) -> int:
        """One each ten minutes."""
        return int(self.hours * 6)

    def checkpoints(self, count: int) -> list[CheckpointRef]:
        """Its newest ones, oldest first."""
        last = self.saves * 100
        steps = range(last - 100 * (count - 1), last + 1, 100) if self.saved else ()
        return [ref(self.job_id, self.spec, step, self.gpus) for step in steps]


def spec_of(number: int) -> JobSpec:
    """The spec of a run; 100 of them are different."""
    return _spec(number % 100)


@lru_cache(maxsize=100)
def _spec(number: int) -> JobSpec:
    gpus, hours = MIX[number % len(MIX)]
    return JobSpec.model_validate(
        {
            "name": f"llama-sft-{number}",
            "team": TEAMS[number * 7 % len(TEAMS)],
            "command": ["python", "-m", "train", "--config", "train.yaml"],
            "resources": {"gpus": gpus},
            "hyperparameters": {"lr": 3e-4, "layers": 24, "batch_size": 256},
            "env": {"NCCL_DEBUG": "WARN"},
            "expected_runtime_hours": hours,
        }
    )


def ref(job_id: str, spec: JobSpec, step: int, world_size: int, attempt: int = 1) -> CheckpointRef:
    """A committed checkpoint."""
    key = commit_key(job_prefix(spec.team, job_id, spec), attempt, step)
    return CheckpointRef(
        job_id=job_id, attempt=attempt, step=step, world_size=world_size, commit_key=key
    )


def committed(point: CheckpointRef) -> CheckpointCommitted:
    """The checkpoint service says that it counts."""
    return CheckpointCommitted(
        job_id=point.job_id, checkpoint=point, size_bytes=10**9 * point.world_size,
        objects=2 * point.world_size + 1, write_s=12.3, blocked_s=0.02, verify_s=9.0,
        metrics={"loss": 1.25, "step": float(point.step)},
    )  # fmt: skip


def node_name(number: int) -> str:
    return f"node-{number:05d}"


def node_info(node_id: str, number: int = 0) -> NodeInfo:
    """A node of 8 GPUs in a rack of 32."""
    return gangs.node_info(
        node_id, GPUS, address=ADDRESS, rack=f"r{number // 32}", block=f"b{number // 512}",
        cpus=96, memory_gb=2048, rendezvous_ports=tuple(range(29_500, 29_564)),
    )  # fmt: skip


def live_gangs() -> Iterator[tuple[str, JobSpec, list[str]]]:
    """Job, spec and nodes of each gang that runs."""
    first = number = 0
    for count, size in LIVE:
        for _ in range(count):
            nodes = [node_name(first + at) for at in range(size)]
            yield f"live-{number:04d}", spec_of(number), nodes
            first, number = first + size, number + 1


def allocated(
    job_id: str, spec: JobSpec, nodes: Sequence[str], attempt: int = 1, gpus: int = GPUS
) -> GangAllocated:
    """A gang on so many GPUs of each of these nodes."""
    parts = gangs.spread(nodes, gpus, address=ADDRESS)
    return gangs.gang_allocated(job_id, spec, *parts, attempt=attempt)


def ended(job_id: str, attempt: int, allocated_at: datetime) -> list[Event]:
    """What the scheduler says of a gang that ended well."""
    return [
        gangs.gang_released(job_id, attempt, allocated_at, ReleaseReason.SUCCEEDED, 1.0),
        JobStateChanged(
            job_id=job_id, attempt=attempt, previous=JobState.RUNNING, state=JobState.SUCCEEDED
        ),
    ]  # fmt: skip


def teams() -> list[TeamConfig]:
    """20 teams; half of them may hold less than their part, as in the scheduler's benchmarks."""
    part = NODES * GPUS // len(TEAMS)
    return [
        TeamConfig(
            team=name, gpu_limit=part * 3 // 4 if number % 2 else part * 3,
            gpu_guarantee=part // 2, borrow_limit=part // 4, gpu_hours_per_month=10**6,
        )
        for number, name in enumerate(TEAMS)
    ]  # fmt: skip


@dataclass
class Service:
    """A deciding service with its state, its clock, and a note of what each input cost.

    A subclass says what the methods from `begin` on do; `codec` is that of its snapshots.
    The first and the last days have every run, those between one of `thinned`. By the end they are
    forgotten, as the service `remembers` a run for so many days, or so many of the `newest`.
    `whole`: runs that end now are remembered at the end of the year. `checks`: each input is
    followed by a check of the invariants; the service checks each batch.
    """

    decider: Decider[Any, Any]
    codec: Any
    runs_a_day: int = RUNS_A_DAY
    remembers: int = MONTH_DAYS
    newest: int = 0
    thinned: int = 20
    whole: bool = False
    checks: bool = True
    now: datetime = START
    state: Any = None
    soft: Any = None
    written: list[tuple[datetime, Event]] = field(default_factory=list)
    cycles: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def __post_init__(self) -> None:
        self.state = self.decider.initial()
        self.soft = self.decider.initial_soft()

    @property
    def between_runs(self) -> timedelta:
        return timedelta(days=1) / self.runs_a_day

    def begin(self) -> None:
        """Teams and nodes."""

    def end_run(self, run: Run) -> None:
        """What is left of a run that has just ended."""

    def lose_node(self, node_id: str) -> None:
        """A node joins, and fails for good."""

    def go_live(self) -> None:
        """The gangs that run now, and what waits."""

    def round(self) -> None:
        """A run ends, another begins, others save; a tick."""

    def watched_round(self) -> None:
        """A round whose costs are looked at."""
        self.round()

    def fold(self, *events: Event) -> None:
        """Events of its own log."""
        for event in events:
            self.decider.evolve(
                self.state, Decision(getattr(event, "job_id", "s"), event), self.now
            )

    def give(self, kind: str, event: Event) -> list[Event]:
        """One input from outside: what was decided."""
        envelope = Envelope("in", "/bench", self.now, getattr(event, "job_id", "s"), event)
        return self.cycle(kind, Received(envelope, topic_of(event.type).value, 0, 0))

    def observe(self, observed: Observed) -> None:
        """Note it in the soft state."""
        self.soft = self.decider.observe(self.state, self.soft, observed, self.now)

    def tick(self) -> list[Event]:
        return self.cycle("tick", Tick())

    def done(self, key: str, result: object) -> list[Event]:
        return self.cycle("effect", EffectDone(key, result))

    def cycle(self, kind: str, item: Input) -> list[Event]:
        """Decide, fold, check the invariants; the CPU time of this thread."""
        began_s = time.thread_time()
        decisions = self.decider.decide(self.state, self.soft, item, self.now)
        for decision in decisions:
            self.state = self.decider.evolve(self.state, decision, self.now)
            self.observe(decision)
        checked = self.checks and kind not in REPORTS
        broken = self.decider.check(self.state) if checked else []
        self.cycles[kind].append((time.thread_time() - began_s) * 1e3)
        assert not broken, broken[0]
        events = [decision.event for decision in decisions]
        self.written += [(self.now, event) for event in events]
        return events


def pass_time(service: Service, days: int) -> int:
    """So many days of ended runs, at their own pace; how many runs were folded."""
    if service.newest:
        service.remembers = service.newest * 11 // 10 // service.runs_a_day + 1
    service.begin()
    number = lost = folded = 0
    for day in range(days):
        service.whole = day >= days - service.remembers
        each = 1 if service.whole or day < service.remembers else service.thinned
        for _ in range(service.runs_a_day // each):
            service.now += service.between_runs * each
            gpus, hours = MIX[number % len(MIX)]
            service.end_run(Run(number, spec_of(number), gpus, hours))
            number += each
            folded += 1
        for _ in range(NODES_LOST_A_DAY):
            service.lose_node(f"lost-{lost:06d}")
            lost += 1
    service.go_live()
    return folded


def records(events: Iterable[tuple[datetime, Event]], next_seq: int) -> list[Record]:
    """Events as they lie in a log, from `next_seq` on at offsets that are their seq."""
    found = []
    for seq, (at, event) in enumerate(events, next_seq):
        envelope = Envelope(
            f"e{seq}", "/gangline/bench", at, getattr(event, "job_id", "s"), event,
            position=LogPosition(0, 1, seq),
        )  # fmt: skip
        out = encode(envelope, topic=topic_of(event.type).value, key="0", partition=0)
        found.append(Record(out.topic, 0, seq, out.key, out.value, out.headers, 0))
    return found


def fresh_id(service: Service) -> str:
    """The id of a run that begins now."""
    return f"new-{(service.now - START) // timedelta(milliseconds=1):014d}"


Made = Callable[[], Service]
