"""A busy cluster for the scheduler's benchmarks, and a clock around single cycles.

The state is folded from a made log, as a standby's is: 20 teams, nodes, jobs that wait. The gangs
that run were placed by the scheduler's own passes. Everything is drawn from one seed.
"""

from __future__ import annotations

import gc
import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path

from gangline_bus.codec import Received
from gangline_bus.decision import BatchEnd, Input, Observed, Tick
from gangline_scheduler.core.decide import Scheduler
from gangline_scheduler.core.evolve import fold
from gangline_scheduler.core.policy.config import Policy
from gangline_schemas.base import Event
from gangline_schemas.envelope import Envelope
from gangline_schemas.events.quota import JobAdmitted
from gangline_schemas.events.scheduling import (
    GangAllocated,
    JobQueued,
    JobStateChanged,
    NodeAdmitted,
    TeamNoted,
)
from gangline_schemas.events.workers import ExitReason, NodeInfo, WorkerExited, WorkerStarted
from gangline_schemas.job import JobSpec, JobState
from gangline_schemas.team_limits import TeamConfig
from gangline_simulator.cluster import read_cluster

START = datetime(2026, 11, 2, 8, tzinfo=UTC)
DATA = Path(__file__).parent / "data"
TEAMS = tuple(f"team-{number:02d}" for number in range(20))
NODES_PER_RACK, RACKS_PER_BLOCK = 32, 16
MOST_SETTLING_TICKS = 40
"""Each fills what the one before left free; a cluster that has settled needs no more."""
PRIORITIES = (25, 50, 50, 50, 75)
SMALL, MEDIUM, LARGE = 0.80, 0.15, 0.05
SIZES = {
    SMALL: ((1, 2, 4, 8), (4, 2, 2, 2), (0.1, 4.0)),
    MEDIUM: ((16, 32, 64), (5, 3, 2), (6.0, 48.0)),
    LARGE: ((128, 256, 512, 1024), (10, 6, 3, 1), (48.0, 300.0)),
}
"""Sizes in GPUs, how often each, and the hours that they run: the mix the platform is made for."""
TYPES: tuple[tuple[str, ...], ...] = ((), ("a100-sxm4-80gb",), ("h800", "a100-sxm4-80gb"))


@dataclass(frozen=True, slots=True)
class Cycle:
    """One input: decided, folded, and the invariants checked as the service does."""

    kind: str
    decide_ms: float
    check_ms: float
    events: int

    @property
    def ms(self) -> float:
        return self.decide_ms + self.check_ms


def trace_file(name: str) -> Path | None:
    """A file of the traces: in the folder that GANGLINE_TRACES names, else the copy kept here."""
    places = [DATA / f"{name}.gz", DATA / name]
    if folder := os.environ.get("GANGLINE_TRACES"):
        places.insert(0, Path(folder) / name)
    return next((place for place in places if place.exists()), None)


@lru_cache(maxsize=1)
def inventory() -> tuple[NodeInfo, ...]:
    """The 4,278 nodes of a real cluster, 1 to 8 GPUs each; racks and blocks are ours."""
    path = trace_file("alibaba_gpu_nodes.csv")
    assert path is not None, "tests/bench/data/alibaba_gpu_nodes.csv.gz is part of the repository"
    (pool,) = read_cluster(path).pools
    return tuple(_placed(node, number) for number, node in enumerate(pool.nodes))


def _placed(node: NodeInfo, number: int) -> NodeInfo:
    rack = number // NODES_PER_RACK
    where = {"rack": f"r{rack}", "block": f"b{rack // RACKS_PER_BLOCK}"}
    return node.model_copy(update={**where, "memory_gb": 2048.0})


def repeated(nodes: Sequence[NodeInfo], times: float) -> list[NodeInfo]:
    """So many times the nodes, each copy with racks of its own; a part of them below 1."""
    if times < 1:
        return list(nodes[:: round(1 / times)])
    return [
        node.model_copy(
            update={
                "node_id": f"{node.node_id}-{copy}",
                "rack": f"{node.rack}-{copy}",
                "block": f"{node.block}-{copy}",
            }
        )
        for copy in range(round(times))
        for node in nodes
    ]


class Jobs:
    """Draws jobs of the mix. Equal specs are one object."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._specs: dict[tuple[object, ...], JobSpec] = {}

    def draw(self) -> JobSpec:
        """The next job."""
        chance = self._random
        (kind,) = chance.choices(tuple(SIZES), weights=tuple(SIZES))
        sizes, weights, (shortest_h, longest_h) = SIZES[kind]
        (gpus,) = chance.choices(sizes, weights=weights)
        hours = round(chance.uniform(shortest_h, longest_h), 1)
        key = (chance.choice(TEAMS), chance.choice(PRIORITIES), gpus, chance.choice(TYPES), hours)
        if key not in self._specs:
            self._specs[key] = spec(*key)
        return self._specs[key]


def spec(team: str, priority: int, gpus: int, types: tuple[str, ...], hours: float) -> JobSpec:
    """One job's spec."""
    return JobSpec.model_validate(
        {
            "name": "bench",
            "team": team,
            "priority": priority,
            "preemptible": gpus <= 8,
            "command": ["x"],
            "resources": {"gpus": gpus, "gpu_type": types, "cpus_per_gpu": 4},
            "expected_runtime_hours": hours,
        }
    )


class BusyCluster:
    """A scheduler with its state, its clock, and a note of what each cycle cost."""

    def __init__(
        self,
        nodes: Sequence[NodeInfo],
        teams: Sequence[TeamConfig],
        *,
        policy: Policy | None = None,
        checks: bool = True,
    ) -> None:
        """`checks`: check the invariants after each input but reports; the service: each batch."""
        self.checks = checks
        self.scheduler = Scheduler(policy=policy)
        self.state = self.scheduler.initial()
        self.soft = self.scheduler.initial_soft()
        self.now = START
        self.cycles: list[Cycle] = []
        self.allocated: list[GangAllocated] = []
        self._number = 0
        for config in teams:
            fold(self.state, TeamNoted(config=config), self.now)
        for node in nodes:
            fold(self.state, NodeAdmitted(node=node), self.now)

    def fold_waiting(self, job: JobSpec, *, since: datetime) -> str:
        """A job that waits since then, as the log would say."""
        job_id = self._new_id()
        queued = JobQueued(job_id=job_id, spec=job, user="ann", submitted_at=since)
        fold(self.state, queued, since)
        waits = JobStateChanged(
            job_id=job_id,
            attempt=0,
            previous=JobState.PENDING,
            state=JobState.PENDING,
            reason="queued",
        )
        fold(self.state, waits, since)
        return job_id

    def submit(self, job: JobSpec) -> str:
        """Quota admitted a job."""
        job_id = self._new_id()
        self.give(
            "submission",
            JobAdmitted(job_id=job_id, spec=job, user=job.team, submitted_at=self.now),
        )
        return job_id

    def tick(self) -> None:
        """A tick of the service."""
        self._cycle("tick", Tick())

    def start_ranks(self, gang: GangAllocated) -> None:
        """Every rank of a gang reports that it runs."""
        for rank, node_id in ranks_of(gang):
            self.give(
                "report",
                WorkerStarted(
                    job_id=gang.job_id,
                    attempt=gang.attempt,
                    rank=rank,
                    node_id=node_id,
                    incarnation="1",
                    pid=1,
                ),
            )

    def finish(self, job_id: str, reason: ExitReason = ExitReason.FINISHED) -> None:
        """Every rank of a gang exits; the last one releases its GPUs, and a full pass follows."""
        gang = self.state.jobs[job_id].gang
        assert gang is not None
        for rank in range(gang.world_size):
            self.give(
                "report" if rank < gang.world_size - 1 else "release",
                WorkerExited(
                    job_id=job_id,
                    attempt=gang.attempt,
                    rank=rank,
                    node_id=gang.nodes[0].node_id,
                    incarnation="1",
                    reason=reason,
                ),
            )

    def give(self, kind: str, event: Event, *, together: bool = False) -> None:
        """One event from outside; `together`: it is one of a batch."""
        self._cycle(kind, Received(Envelope("", "/bench", self.now, "", event), "", 0, 0, together))

    def end_batch(self) -> None:
        """The end of what was given together."""
        self._cycle("batch", BatchEnd())
        self._observe(BatchEnd())

    def wait(self, seconds: float) -> None:
        """Time passes."""
        self.now += timedelta(seconds=seconds)

    def _cycle(self, kind: str, item: Input) -> None:
        started = time.thread_time()
        if isinstance(item, Tick):
            self._observe(item)
        decisions = self.scheduler.decide(self.state, self.soft, item, self.now)
        for decision in decisions:
            self.state = self.scheduler.evolve(self.state, decision, self.now)
            self._observe(decision)
        if isinstance(item, Received):
            self._observe(item)
        decided = time.thread_time()
        checked = self.check() if self.checks and kind != "report" else decided
        events = [decision.event for decision in decisions]
        self.allocated += [event for event in events if isinstance(event, GangAllocated)]
        self.cycles.append(
            Cycle(kind, (decided - started) * 1e3, (checked - decided) * 1e3, len(events))
        )

    def _observe(self, observed: Observed) -> None:
        self.soft = self.scheduler.observe(self.state, self.soft, observed, self.now)

    def check(self) -> float:
        """Assert the invariants; the time afterwards."""
        broken = self.scheduler.check(self.state)
        assert not broken, broken[0]
        return time.thread_time()

    def _new_id(self) -> str:
        self._number += 1
        return f"job-{self._number}"


def ranks_of(gang: GangAllocated) -> Iterator[tuple[int, str]]:
    """(rank, node) of every rank."""
    for part in gang.nodes:
        for place in range(len(part.gpus)):
            yield part.first_rank + place, part.node_id


def busy_cluster(
    times: float, *, running: int, pending: int, seed: int = 1, ticks: int = MOST_SETTLING_TICKS
) -> BusyCluster:
    """`times` the inventory, with about so many gangs that run and exactly so many that wait.

    Half of the teams are at their limit while their jobs wait, the others wait for GPUs.
    """
    nodes, jobs = repeated(inventory(), times), Jobs(seed)
    gpus = sum(len(node.gpus) for node in nodes)
    cluster = BusyCluster(nodes, [_team(name, number, gpus) for number, name in enumerate(TEAMS)])
    earlier = cluster.now
    for number in range(running):
        cluster.fold_waiting(jobs.draw(), since=earlier + timedelta(milliseconds=number))
    cluster.tick()
    cluster.wait(6 * 3600)
    for number in range(pending - len(cluster.state.pending)):
        since = cluster.now - timedelta(seconds=6 * 3600 * (1 - number / pending))
        cluster.fold_waiting(jobs.draw(), since=since)
    for _ in range(ticks):
        running = len(cluster.state.live)
        cluster.wait(20)
        cluster.tick()
        if len(cluster.state.live) == running:
            break
    while len(cluster.state.pending) < pending:
        cluster.fold_waiting(jobs.draw(), since=cluster.now)
    cluster.cycles.clear()
    cluster.allocated.clear()
    return cluster


def _team(name: str, number: int, gpus: int) -> TeamConfig:
    """Limits of half the teams are below their part of the cluster, of the others far above."""
    part = gpus // len(TEAMS)
    limit = part * 3 // 4 if number % 2 else part * 3
    return TeamConfig(team=name, gpu_limit=limit, gpu_guarantee=part // 2, borrow_limit=part // 4)


def calibration_ms() -> float:
    """A loop of plain Python of about 20 ms on the machines that the figures were taken on.

    A figure over this one is a ratio that says as much on a slower machine.
    """

    def once() -> float:
        started = time.thread_time()
        table: dict[int, tuple[int, int]] = {}
        for number in range(100_000):
            table[number % 5000] = (number, number + 1)
        return (time.thread_time() - started) * 1e3

    return min(once() for _ in range(5))


def quantile(values: Sequence[float], part: float) -> float:
    """The smallest value that at least this part of all values don't pass."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


def settle(make: Callable[[], BusyCluster]) -> BusyCluster:
    """A cluster whose set-up left no garbage to the cycles that are measured."""
    cluster = make()
    gc.collect()
    return cluster
