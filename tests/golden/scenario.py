"""A few days of a small cluster, drawn from a seed: the logs of quota and of the scheduler.

Both decide by their production code and read each other, as over the bus. What happens: jobs of
three teams, ranks that start, save, finish and fail, nodes that die, come back and are drained,
cancels, restores, changed priorities and limits, and requests that are refused.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from gangline_bus.codec import Received
from gangline_bus.decision import Decider, Tick
from gangline_quota.core.decide import Quota
from gangline_scheduler.core.decide import Scheduler
from gangline_schemas.base import Event
from gangline_schemas.catalog import topic_of
from gangline_schemas.envelope import Envelope
from gangline_schemas.events.admin import NodeDrainRequested, TeamConfigureRequested
from gangline_schemas.events.checkpoints import CheckpointCommitted
from gangline_schemas.events.faults import FailureCause, GangFailed, NodeFailed
from gangline_schemas.events.requests import (
    JobCancelRequested,
    JobPriorityRequested,
    JobRestoreRequested,
    JobSubmitted,
)
from gangline_schemas.events.workers import (
    ExitReason,
    NodeInfo,
    NodeJoined,
    NodeLeaving,
    WorkerExited,
    WorkerStarted,
)
from gangline_schemas.job import JobSpec
from gangline_schemas.team_limits import TeamConfig
from support.builders.gangs import node_info

START = datetime(2026, 11, 21, 8, 0, tzinfo=UTC)
NODES, GPUS = 12, 4
TEAMS = ("cv", "nlp", "speech")
ACTIONS = """
    submit submit submit submit submit submit submit submit save save save save
    finish finish finish finish finish fail node_fail rejoin rejoin rejoin rejoin rejoin leave
    cancel restore priority drain undrain undrain team refuse wait wait
""".split()  # noqa: SIM905 - the weights stay readable


@dataclass(frozen=True, slots=True)
class Logged:
    """One event of a log, and when it was decided."""

    subject: str
    event: Event
    at: datetime


class Scenario:
    """The two deciders, their logs, and the world around them."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = START
        self.deciders: dict[str, Decider[Any, Any]] = {"quota": Quota(), "scheduler": Scheduler()}
        self.states = {name: decider.initial() for name, decider in self.deciders.items()}
        self.logs: dict[str, list[Logged]] = {name: [] for name in self.deciders}
        self.incarnations = dict.fromkeys(range(NODES), 1)
        self.jobs = 0
        self._inputs = 0

    def run(self, events: int) -> None:
        """Live until the scheduler's log is so long."""
        for team in TEAMS:
            self._configure(team)
        for index in range(NODES):
            self._tell(NodeJoined(node=self._node(index)))
        while len(self.logs["scheduler"]) < events:
            self.now += timedelta(seconds=self.random.randint(1, 90))
            getattr(self, f"_{self.random.choice(ACTIONS)}")()
            self._follow_orders()
            self._tick()

    # What users and nodes do.

    def _submit(self) -> None:
        self.jobs += 1
        draw = self.random
        fields: dict[str, object] = {
            "name": f"train-{self.jobs}",
            "team": draw.choice(TEAMS),
            "run": "true",
            "priority": draw.randint(0, 100),
            "preemptible": draw.random() < 0.5,
            "resources": {"gpus": draw.choice((1, 1, 2, 2, 3, 4, 8, 8, 12, 16))},
            "topology": {"level": draw.choice(("node", "rack", "block"))},
            "hyperparameters": {"lr": draw.choice((1e-3, 3e-4)), "layers": draw.randint(2, 48)},
            "stop_grace_seconds": 60,
        }
        if draw.random() < 0.1:
            fields["max_runtime_hours"] = 2
        if draw.random() < 0.1 and self.jobs > 5:
            fields["resume_from"] = f"job-{draw.randint(1, self.jobs - 1)}"
        spec = JobSpec.model_validate(fields)
        self._tell(JobSubmitted(job_id=f"job-{self.jobs}", spec=spec, user="ada"))

    def _refuse(self) -> None:
        spec = JobSpec(name="huge", team="nlp", run="true", resources={"gpus": 4000})  # type: ignore[arg-type]
        self._tell(JobSubmitted(job_id=f"huge-{self._inputs}", spec=spec, user="ada"))
        self._tell(JobCancelRequested(job_id="nobody", user="ada"))

    def _cancel(self) -> None:
        if (job_id := self._any_job()) is not None:
            self._tell(JobCancelRequested(job_id=job_id, user="ada"))

    def _restore(self) -> None:
        job_id = self._any_job()
        if job_id is None:
            return
        points = self.states["scheduler"].jobs[job_id].checkpoints
        if points:
            step = self.random.choice(points).step
            self._tell(JobRestoreRequested(job_id=job_id, step=step, user="ada"))

    def _priority(self) -> None:
        if (job_id := self._any_job()) is not None:
            number = self.random.randint(0, 100)
            self._tell(JobPriorityRequested(job_id=job_id, priority=number, user="ada"))

    def _team(self) -> None:
        self._configure(self.random.choice(TEAMS))

    def _configure(self, team: str) -> None:
        limit = self.random.randint(16, 48)
        guarantee, borrow = self.random.randint(0, 16), self.random.randint(0, 8)
        config = TeamConfig(
            team=team, gpu_limit=limit, gpu_guarantee=guarantee, borrow_limit=borrow
        )
        self._tell(TeamConfigureRequested(config=config, user="root"))

    def _drain(self, *, on: bool = True) -> None:
        node_id = f"node-{self.random.randrange(NODES)}"
        self._tell(NodeDrainRequested(node_id=node_id, drain=on, user="root"))

    def _undrain(self) -> None:
        self._drain(on=False)

    def _leave(self) -> None:
        index = self.random.randrange(NODES)
        incarnation = f"i{self.incarnations[index]}"
        self._tell(NodeLeaving(node_id=f"node-{index}", incarnation=incarnation, reason="spot"))

    def _rejoin(self) -> None:
        index = self.random.randrange(NODES)
        node = self.states["scheduler"].nodes[f"node-{index}"]
        if node.down is not None and not node.allocations:
            self.incarnations[index] += 1
            self._tell(NodeJoined(node=self._node(index)))

    def _node_fail(self) -> None:
        index = self.random.randrange(NODES)
        node_id, incarnation = f"node-{index}", f"i{self.incarnations[index]}"
        self._tell(NodeFailed(node_id=node_id, incarnation=incarnation, reason="silent"))
        for job in list(self._live()):
            if any(part.node_id == node_id for part in job.gang.nodes):
                self._verdict(job, FailureCause.NODE, "restart", (node_id,))

    # What ranks do.

    def _save(self) -> None:
        for job in list(self._live())[:3]:
            newest = job.checkpoints[-1].step if job.checkpoints else 0
            point = {
                "job_id": job.job_id,
                "attempt": job.gang.attempt,
                "step": newest + self.random.randint(1, 500),
                "world_size": job.gang.world_size,
                "commit_key": f"{job.job_id}/{newest}/COMMIT.json",
            }
            committed = {"job_id": job.job_id, "checkpoint": point, "size_bytes": 1, "objects": 1}
            self._tell(CheckpointCommitted.model_validate(committed))

    def _finish(self) -> None:
        job = self._any_running()
        if job is not None:
            self._exit(job, ExitReason.FINISHED)

    def _fail(self) -> None:
        job = self._any_running()
        if job is not None:
            action = self.random.choice(("restart", "restart", "fail"))
            self._verdict(job, FailureCause.PROCESS, action, ())

    def _wait(self) -> None:
        self.now += timedelta(minutes=self.random.randint(5, 60))

    def _follow_orders(self) -> None:
        """Ranks of new gangs start; those that were asked to stop do, mostly."""
        for job in list(self._live()):
            if job.gang.stop is not None:
                if self.random.random() < 0.7:
                    self._exit(job, ExitReason.STOPPED)
            elif job.gang.unseen and self.random.random() < 0.9:
                for rank in range(job.gang.world_size):
                    self._tell(WorkerStarted(**self._rank(job, rank), pid=rank + 1))

    def _exit(self, job: Any, reason: ExitReason) -> None:
        attempt = job.gang.attempt
        for rank in range(job.gang.world_size):
            known = self.states["scheduler"].jobs.get(job.job_id)
            if known is None or known.gang is None or known.gang.attempt != attempt:
                return
            self._tell(WorkerExited(**self._rank(job, rank), reason=reason))

    def _rank(self, job: Any, rank: int) -> dict[str, Any]:
        part = next(part for part in reversed(job.gang.nodes) if part.first_rank <= rank)
        return {
            "job_id": job.job_id,
            "attempt": job.gang.attempt,
            "rank": rank,
            "node_id": part.node_id,
            "incarnation": part.incarnation,
        }

    def _verdict(self, job: Any, cause: FailureCause, action: str, avoid: tuple[str, ...]) -> None:
        verdict = {
            "job_id": job.job_id,
            "attempt": job.gang.attempt,
            "cause": cause,
            "action": action,
            "message": "rank 0 was killed by signal 9",
            "avoid_nodes": avoid,
            "restarts_used": 1,
            "restarts_max": 3,
            "failed_at": self.now,
        }
        self._tell(GangFailed.model_validate(verdict))

    # The bus.

    def _tell(self, event: Event) -> None:
        """Both read an event of the world, and each what the other decides."""
        self._deliver([(name, event) for name in self.deciders])

    def _tick(self) -> None:
        for name in self.deciders:
            self._deliver(self._decide(name, Tick()))

    def _deliver(self, told: list[tuple[str, Event]]) -> None:
        waiting = deque(told)
        while waiting:
            name, event = waiting.popleft()
            self._inputs += 1
            envelope = Envelope(f"in-{self._inputs}", "/golden", self.now, "golden", event)
            received = Received(envelope, topic_of(event.type), 0, self._inputs)
            waiting += self._decide(name, received)

    def _decide(self, name: str, item: Received | Tick) -> list[tuple[str, Event]]:
        """What was decided, for the other."""
        decider, (other,) = self.deciders[name], self.deciders.keys() - {name}
        decisions = list(decider.decide(self.states[name], None, item, self.now))
        for decision in decisions:
            self.states[name] = decider.evolve(self.states[name], decision, self.now)
            self.logs[name].append(Logged(decision.subject, decision.event, self.now))
        assert decider.check(self.states[name]) == []
        return [(other, decision.event) for decision in decisions]

    # What is there.

    def _live(self) -> Iterator[Any]:
        state = self.states["scheduler"]
        return (state.jobs[job_id] for job_id in state.live)

    def _any_job(self) -> str | None:
        jobs = sorted(self.states["scheduler"].jobs)
        return self.random.choice(jobs) if jobs else None

    def _any_running(self) -> Any:
        running = [job for job in self._live() if not job.gang.unseen and job.gang.stop is None]
        return self.random.choice(running) if running else None

    def _node(self, index: int) -> NodeInfo:
        return node_info(
            f"node-{index}", GPUS, model="a100", incarnation=f"i{self.incarnations[index]}",
            hostname=f"host-{index}", rack=f"rack-{index // 4}", block=f"block-{index // 8}",
            rendezvous_ports=(29500, 29501),
        )  # fmt: skip
