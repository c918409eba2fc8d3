"""The simulated platform: broker, services, machines, users, and the three phases of a run.

1. Chaos: the plan's faults happen while jobs are submitted and run.
2. Heal: every fault ends; lost machines are replaced.
3. Liveness: before a virtual deadline all has ended or waits with a reason, and lag is 0.
Invariants are checked after each step of a service and each start of a rank.
"""

from __future__ import annotations

import gc
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from gangline_bus import decider, dlq, fold, snapshot
from gangline_bus.codec import Received, receive
from gangline_bus.ports import Record
from gangline_bus.topics import TopicNames, create_topics
from gangline_checkpoints.core import snapshot as checkpoints_snapshot
from gangline_checkpoints.core import state as checkpoints_state
from gangline_checkpoints.service import executor as checkpoints_executor
from gangline_faults.core import snapshot as faults_snapshot
from gangline_quota.core import snapshot as quota_snapshot
from gangline_scheduler.core import invariants
from gangline_scheduler.core import snapshot as scheduler_snapshot
from gangline_scheduler.core import state as scheduler_state
from gangline_schemas.events.scheduling import CheckpointRef, GangAllocated
from gangline_worker.agent.decide.keys import GangKey
from gangsim import ending
from gangsim.engine import Engine, Violation
from gangsim.machines import Machines
from gangsim.node import SimNode
from gangsim.parts import Parts
from gangsim.plan import Fault, JobPlan, NodePlan, Plan
from gangsim.poison import Poisons
from gangsim.services import Service, ServiceProcess
from gangsim.snapshots import SimSnapshots, SnapshotLog
from gangsim.store import SimStore
from gangsim.training import RankProcess, Training
from gangsim.users import Users
from gangsim.watch import Watch

if TYPE_CHECKING:
    from gangline_bus.decider import DeciderLoop

LIVENESS_S = 3600.0
RESUME_RACE_S = 2.0
TIDY_EVERY = 5
TIDY_S = checkpoints_state.GRACE_S + 60.0
QUIET_S = 15.0
LOOK_EVERY_S = 5.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended. `violation` is empty when nothing was wrong."""

    violation: str
    trace_hash: str
    ended_s: float
    events: int
    checkpoints: int
    counts: tuple[tuple[str, int], ...] = ()
    trace: tuple[str, ...] = ()


class World:
    """One run of one plan."""

    def __init__(self, plan: Plan, parts: Parts, *, keep_trace: bool = False) -> None:
        self.plan = plan
        self.parts = parts
        self.engine = Engine(plan.seed, keep_trace=keep_trace)
        self.names = TopicNames()
        self.broker = parts.broker(self.engine)
        create_topics(self.broker.connect("setup"), self.names)
        self.store = SimStore(self.engine.stream("store"))
        self.snapshots = SimSnapshots(self.broker, self.engine)
        self.machines = Machines(self.engine)
        self.trainings: dict[GangKey, Training] = {}
        self.completed: dict[GangKey, int] = {}
        self.saved: dict[str, bytes] = {}
        self.heard: dict[str, float] = {}
        self.unread: dict[str, None] = {}
        self.silences: list[Fault] = []
        self.mass_silence_since_s: float | None = None
        self.jobs: dict[str, JobPlan] = {job.job_id: job for job in plan.jobs}
        self._received: dict[tuple[str, int, int], Received] = {}
        self.poisons = Poisons(self.engine)
        self.watch = Watch(self)
        self._consistent: tuple[object, ...] = ()
        self.live_loops: dict[str, DeciderLoop[object]] = {}
        self.nodes: dict[str, SimNode] = {}
        for node in plan.nodes:
            self.add_node(node)
        self.processes = [
            ServiceProcess(self, service, instance)
            for service, instances in self._services()
            for instance in instances
        ]
        self.users = Users(self)
        for process in self.processes:
            for topic in process.service.decider().inputs:  # signals wait for the next tick
                name = self.names.name(topic)
                self.broker.wakes.setdefault(name, []).append(process.wake)

    def _services(self) -> list[tuple[Service, str]]:
        parts = self.parts
        executor = checkpoints_executor.StoreExecutor(
            self.store,
            clock=lambda: self.engine.utc,
            pause=lambda seconds: None,
        )
        return [
            (Service("quota", parts.quota, quota_snapshot.fingerprint, quota_snapshot.codec), "a"),
            (
                Service(
                    "scheduler",
                    parts.scheduler,
                    scheduler_snapshot.fingerprint,
                    partial(scheduler_snapshot.codec, parts.scheduler().initial),
                ),
                "ab",
            ),
            (
                Service(
                    "fault-manager",
                    parts.faults,
                    faults_snapshot.fingerprint,
                    faults_snapshot.codec,
                ),
                "a",
            ),
            (
                Service(
                    "checkpoint-service",
                    parts.checkpoints,
                    checkpoints_snapshot.fingerprint,
                    checkpoints_snapshot.codec,
                    executor,
                ),
                "a",
            ),
        ]

    def add_node(self, plan: NodePlan) -> None:
        """A machine that boots soon."""
        node = SimNode(self, plan)
        self.nodes[plan.node_id] = node
        self.engine.after(node.random.uniform(0.1, 2.0), node.boot)

    def process(self, name: str) -> list[ServiceProcess]:
        """The instances of a service."""
        return [process for process in self.processes if process.service.name == name]

    def receive(self, record: Record) -> Received:
        """Decode a record once for all its readers: events are frozen."""
        place = (record.topic, record.partition, record.offset)
        found = self._received.get(place)
        if found is None:
            found = self._received[place] = receive(record)
        return found

    # What ranks do.

    def training(self, allocation: GangAllocated) -> Training:
        """The training that the ranks of one attempt run together."""
        key = GangKey(allocation.job_id, allocation.attempt)
        found = self.trainings.get(key)
        if found is None:
            step = allocation.resume.step if allocation.resume is not None else 0
            found = Training(self.engine, self.jobs[key.job_id], key, allocation.world_size, step)
            self.trainings[key] = found
        return found

    def lost_rank(self, rank: RankProcess, *, clean: bool) -> None:
        """A rank's process is gone."""
        training = self.trainings.get(rank.key.gang)
        if training is None:
            return
        if clean and training.finished and training.step >= training.job.steps:
            self.completed[rank.key.gang] = self.completed.get(rank.key.gang, 0) + 1
        if not (clean and training.finished):
            training.lose(rank)

    # What observers ask.

    def check_success(self, job_id: str, attempt: int) -> None:
        """A job succeeded: all of its ranks really finished."""
        key = GangKey(job_id, attempt)
        training = self.trainings.get(key)
        if training is None or self.completed.get(key, 0) != training.world_size:
            raise Violation(f"{job_id}/{attempt} succeeded, but its ranks did not all finish")

    def check_resume(self, allocation: GangAllocated) -> None:
        """An attempt starts from a checkpoint that was committed."""
        point = allocation.resume
        if point is not None and not self.watch.checkpoints.knows(
            point.job_id, point.attempt, point.step
        ):
            raise Violation(f"{allocation.job_id} resumes from {point}, which was not committed")

    def check_restored(self, resume: CheckpointRef, key: str, data: bytes) -> None:
        """4: what an attempt starts from is what a rank has saved."""
        self.engine.count("restored")
        if self.saved.get(key) != data:
            raise Violation(f"{resume.job_id} starts from {key}, which is not what was saved")

    def resume_missing(self, allocation: GangAllocated, allocated_s: float) -> None:
        """An agent was to resume from a checkpoint and it is not in the store.

        It may have been deleted while the allocation was on its way, never long before.
        """
        point = allocation.resume
        if point is None:
            return
        place = (point.job_id, point.attempt, point.step)
        self.engine.count("resume.deleted")
        gone_s = self.watch.checkpoints.gone_at_s.get(place)
        if gone_s is None or allocated_s - gone_s > RESUME_RACE_S:
            raise Violation(f"{allocation.job_id} resumes from {place}, which is not in the store")

    def check_takeover(self, process: ServiceProcess) -> None:
        """9: at the same position of the log the new state is the one that lived."""
        before, loop = self.live_loops.get(process.service.name), process.loop
        if loop is None:
            return
        self.live_loops[process.service.name] = loop
        if before is not None and before.next_seq == loop.next_seq:
            fingerprint = process.service.fingerprint
            if fingerprint(before.state) != fingerprint(loop.state):
                raise Violation(f"{process.service.name}: replay differs at seq {loop.next_seq}")

    def note_live(self, process: ServiceProcess) -> None:
        """A cycle ended well: what the scheduler derives agrees with its facts."""
        if process.service.name == "scheduler" and process.loop is not None:
            state = process.loop.state
            facts = _facts(state)
            if facts == self._consistent:
                return
            problems = invariants.consistent(state)
            if problems:
                raise Violation(f"scheduler: {problems[0]}")
            self._consistent = facts

    def after_step(self) -> None:
        """Look at what changed."""
        self.watch.look()

    # What a world with more in it adds.

    def unsettled(self) -> str:
        """What is not over yet besides jobs, or ""."""
        return ""

    def check_more(self) -> None:
        """What else must hold at the end. Raises Violation."""

    # The phases.

    def run(self) -> Outcome:
        """All phases. What was violated stands in the outcome."""
        violation = ""
        told = (snapshot, "log", SnapshotLog(self.engine))
        loggers = [(module, "log", _Quiet()) for module in (decider, dlq, checkpoints_executor)]
        received = (decider, "receive", self.receive)
        with _patched(*self.parts.patches, received, told, *loggers):
            try:
                self._phases()
            except Violation as error:
                violation = str(error)
            except Exception as error:
                where = traceback.extract_tb(error.__traceback__)[-1]
                name = where.filename.rpartition("/")[2]
                violation = f"{type(error).__name__} at {name}:{where.lineno}: {error}"
        self.engine.note("end", violation)
        return Outcome(
            violation=violation,
            trace_hash=self.engine.trace_hash,
            ended_s=self.engine.now_s,
            events=self.watch.events,
            checkpoints=self.watch.checkpoints.count,
            counts=tuple(sorted(self.engine.counts.items())),
            trace=tuple(self.engine.trace),
        )

    def _phases(self) -> None:
        from gangsim.faults import Injector

        for process in self.processes:
            process.start()
        self.users.begin()
        injector = Injector(self)
        injector.schedule()
        self._until(self.plan.chaos_s)
        injector.heal()
        self._heal()
        deadline_s = self.engine.now_s + LIVENESS_S
        quiet_since_s: float | None = None
        why = ""
        while self.engine.now_s < deadline_s:
            self._until(self.engine.now_s + LOOK_EVERY_S)
            why = ending.unsettled(self) or self.unsettled()
            if why:
                quiet_since_s = None
            elif quiet_since_s is None:
                quiet_since_s = self.engine.now_s
            elif self.engine.now_s - quiet_since_s >= QUIET_S:
                # The watch has decoded every record of the logs, and no decider its own.
                with _patched((fold, "decode", lambda record, **_: self.receive(record).envelope)):
                    ending.check(self)
                    self.check_more()
                if self.plan.seed % TIDY_EVERY == 0:
                    self._until(self.engine.now_s + TIDY_S)
                    ending.check_tidy(self)
                return
        raise Violation(f"not settled {LIVENESS_S:.0f} s after healing: {why}")

    def _until(self, end_s: float) -> None:
        while self.engine.now_s < end_s:
            self.engine.run(min(end_s, self.engine.now_s + LOOK_EVERY_S))
            self.watch.look()
            self.machines.check_leases(self)

    def _heal(self) -> None:
        self.engine.note("heal")
        for node in list(self.nodes.values()):
            if node.lost:
                replacement = replace(node.plan, node_id=f"{node.node_id}-new")
                if self.engine.stream(f"replace/{node.node_id}").random() < 0.5:
                    node.lost = False  # the same name on a new machine
                    node.boot()
                else:
                    self.add_node(replacement)


def _facts(state: scheduler_state.State) -> tuple[object, ...]:
    """All that `invariants.consistent` looks at; its values are frozen."""
    return (
        dict(state.nodes),
        dict(state.jobs),
        list(state.pending),
        list(state.queue.ids()),
        list(state.live),
        list(state.cpu_pending),
        list(state.cpu_queue.ids()),
        list(state.cpu_live),
        list(state.free.nodes()),
        list(state.empty.nodes()),
        state.free_gpus,
        state.levels,
        state.mix_from,
    )


class _Quiet:
    """A logger that says nothing: what happened is in the trace."""

    def info(self, *_: object, **__: object) -> None:
        """Nothing."""

    debug = warning = error = critical = info


@contextmanager
def _patched(*patches: tuple[object, str, object]) -> Iterator[None]:
    kept = [(owner, name, getattr(owner, name)) for owner, name, _ in patches]
    for owner, name, value in patches:
        setattr(owner, name, value)
    try:
        yield
    finally:
        for owner, name, value in kept:
            setattr(owner, name, value)


def simulate(plan: Plan, parts: Parts | None = None, *, keep_trace: bool = False) -> Outcome:
    """Run one plan to its end.

    Nothing is collected meanwhile: a world keeps what it makes, and is freed as a whole.
    """
    gc.disable()
    try:
        return World(plan, parts or Parts(), keep_trace=keep_trace).run()
    finally:
        gc.enable()
