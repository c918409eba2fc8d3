"""A study in virtual time: the real decider and sampler, with a cluster of gangs that is simulated.

A gang trains in units of `unit_s`. After each unit it reports, and its checkpoint is committed
`save_s` later. Other teams' jobs have each freed gang for `others_s`. The events are those of the
scheduler, the fault manager, the checkpoint service and the agents.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial

from gangline_bus.codec import Received
from gangline_bus.decision import Decision, EffectDone, Input, Tick
from gangline_schemas.base import Event
from gangline_schemas.catalog import topic_of
from gangline_schemas.envelope import Envelope
from gangline_schemas.events.automation import StudySubmitted
from gangline_schemas.events.checkpoints import CheckpointCommitted, CheckpointSaved
from gangline_schemas.events.faults import FailureCause, FailureClass
from gangline_schemas.events.scheduling import (
    CheckpointRef,
    JobStateChanged,
    ReleaseReason,
)
from gangline_schemas.events.studies import TrialJobRequested, TrialJobStopRequested
from gangline_schemas.events.workers import ExitReason, TrialReported, WorkerExited
from gangline_schemas.job import JobSpec, JobState
from gangline_schemas.study_file import StudySpec
from gangline_schemas.study_space import Parameters
from gangline_studies.core.decide import StudyDecider
from gangline_studies.core.snapshot import codec, fingerprint
from gangline_studies.core.state import StudyState
from gangline_studies.service.sampler import Sampler
from support.builders.gangs import assigned, gang_allocated, gang_failed, gang_released

START = datetime(2026, 11, 26, 8, 0, tzinfo=UTC)
PLACE = assigned("n1", (0,))


@dataclass(frozen=True, slots=True)
class Fate:
    """What a trial's program does: its values after each unit (None: NaN), and how it ends.

    `failure`: "exit" or "memory" after the last unit. `nodes_fail`: a node fails after these units.
    `pace`: how much longer its units are than others'.
    """

    values: Sequence[float | None]
    failure: str = ""
    nodes_fail: frozenset[int] = frozenset()
    pace: float = 1.0


@dataclass(slots=True)
class Gang:
    """A job of the simulated cluster. `unit`: the last one that it trained."""

    job_id: str
    spec: JobSpec
    fate: Fate
    unit: int = 0
    saved: int = 0
    attempt: int = 0
    began: datetime | None = None
    stopping: bool = False
    failed: set[int] = field(default_factory=set)


class StudyWorld:
    """Runs studies to their ends. Same arguments, same run."""

    def __init__(
        self,
        program: Callable[[Parameters], Fate],
        *,
        gangs: int = 16,
        unit_s: float = 60.0,
        tick_s: float = 60.0,
        delay_s: float = 0.01,
        save_s: float = 0.0,
        others_s: float = 0.0,
        gpus: int = 1,
        crash: float = 0.0,
        seed: int = 0,
        decider: StudyDecider | None = None,
        sampler: Callable[[str, object], object] | None = None,
        checked: bool = True,
    ) -> None:
        self.program, self.unit_s, self.gpus = program, unit_s, gpus
        self.gangs, self.delay_s, self.tick_s = gangs, delay_s, tick_s
        self.save_s, self.others_s, self.taken = save_s, others_s, 0
        self.decider = decider or StudyDecider()
        self.sampler = sampler or Sampler()
        self.state: StudyState = self.decider.initial()
        self.now = START
        self.log: list[tuple[Decision, datetime]] = []
        self.random = random.Random(seed)
        self.crash, self.crashes, self.checked = crash, 0, checked
        self.jobs: dict[str, Gang] = {}
        self.queue: list[str] = []
        self.running: set[str] = set()
        self.asked: set[str] = set()
        self.after: list[Callable[[StudyWorld, list[Decision]], None]] = []
        self._turn = itertools.count()
        self._heap: list[tuple[datetime, int, Callable[[], None]]] = []

    # The study's side

    def submit(self, study_id: str, spec: StudySpec) -> None:
        """A user submits a study."""
        self.give(StudySubmitted(study_id=study_id, spec=spec, user="ada"))

    def run(self, most: int = 10**7) -> None:
        """Let time pass until all studies have ended."""
        self._later(self.tick_s, self._tick)
        for _ in range(most):
            if not self.state.active or not self._heap:
                break
            self.now, _turn, act = heapq.heappop(self._heap)
            act()
        assert not self.state.active, f"{self.state.active} did not end"

    def give(self, event: Event) -> None:
        """An event is read by the service."""
        number = next(self._turn)
        envelope = Envelope(f"in-{number}", "/test", self.now, "x", event)
        self._decide(Received(envelope, topic_of(event.type).value, 0, number))

    def events(self, kind: type[Event]) -> list[Event]:
        """All own events of one type so far."""
        return [decision.event for decision, _ in self.log if isinstance(decision.event, kind)]

    def _tick(self) -> None:
        self._decide(Tick())
        if self.state.active:
            self._later(self.tick_s, self._tick)

    def _decide(self, item: Input) -> None:
        decisions = list(self.decider.decide(self.state, None, item, self.now))
        if self.crash and self.random.random() < self.crash:  # before the commit
            self.take_over()
            again = list(self.decider.decide(self.state, None, item, self.now))
            assert again == decisions
        for decision in decisions:
            self.state = self.decider.evolve(self.state, decision, self.now)
            self.log.append((decision, self.now))
        if self.checked:
            problems = self.decider.check(self.state)
            assert problems == [], problems
        for look in self.after:
            look(self, decisions)
        for decision in decisions:
            self._act(decision.event)
        if self.crash and self.random.random() < self.crash:  # after it
            self.take_over()
        self._ask()

    def take_over(self) -> None:
        """A new process folds the log; the sampler is not asked for what is in it."""
        self.crashes += 1
        state = self.decider.initial()
        for decision, at in self.log:
            state = self.decider.evolve(state, decision, at)
        assert fingerprint(state) == fingerprint(self.state)
        kept = codec()
        assert kept.load(kept.dump(kept.copy(state))) == state
        self.state = state
        self.asked.clear()

    def _ask(self) -> None:
        wanted = self.decider.effects(self.state, None)
        self.asked &= wanted.keys()
        for key in sorted(wanted.keys() - self.asked):
            self.asked.add(key)
            self._later(self.delay_s, partial(self._answer, key, wanted[key]))

    def _answer(self, key: str, effect: object) -> None:
        self._decide(EffectDone(key, self.sampler(key, effect)))

    # The cluster's side

    def _later(self, after_s: float, act: Callable[[], None]) -> None:
        at = self.now + timedelta(seconds=after_s)
        heapq.heappush(self._heap, (at, next(self._turn), act))

    def _act(self, event: Event) -> None:
        match event:
            case TrialJobRequested():
                fate = self.program(event.spec.hyperparameters)  # type: ignore[arg-type]
                gang = Gang(event.job_id, event.spec, fate)
                source = self.jobs.get(event.spec.resume_from or "")
                if event.spec.resume_from is not None:
                    assert source is not None
                    assert source.saved, "it resumes from no committed checkpoint"
                    gang.unit = gang.saved = source.saved
                self.jobs[event.job_id] = gang
                self.queue.append(event.job_id)
                self._later(self.delay_s, self._allocate)
            case TrialJobStopRequested(job_id=name):
                self._later(self.delay_s, partial(self._stop, name))
            case _:
                pass

    def _allocate(self) -> None:
        for gang in self._placed():
            self._tell(gang)

    def _placed(self) -> list[Gang]:
        """Jobs of the queue that get free gangs now."""
        found = []
        while self.queue and len(self.running) + self.taken < self.gangs:
            gang = self.jobs[self.queue.pop(0)]
            self.running.add(gang.job_id)
            gang.attempt += 1
            gang.began = self.now
            found.append(gang)
        return found

    def _tell(self, gang: Gang) -> None:
        """The service reads that a job has its gang."""
        self._later(self._unit_s(gang), partial(self._unit, gang, gang.attempt))
        self.give(
            gang_allocated(
                gang.job_id, gang.spec, PLACE, attempt=gang.attempt, world_size=self.gpus
            )
        )

    def _unit_s(self, gang: Gang) -> float:
        return self.unit_s * gang.fate.pace

    def _stop(self, name: str) -> None:
        gang = self.jobs[name]
        if gang.job_id in self.queue:
            self.queue.remove(gang.job_id)
            self._end(gang, JobState.CANCELLED)
        elif gang.job_id in self.running:
            gang.stopping = True
            self._later(self.delay_s, partial(self._end, gang, JobState.CANCELLED))

    def _unit(self, gang: Gang, attempt: int) -> None:
        if gang.job_id not in self.running or gang.attempt != attempt or gang.stopping:
            return
        gang.unit += 1
        unit = gang.unit
        if unit in gang.fate.nodes_fail and unit not in gang.failed:
            gang.failed.add(unit)
            self._node_fails(gang)
            return
        self._later(self._unit_s(gang), partial(self._unit, gang, attempt))
        if unit <= len(gang.fate.values):
            self._report(gang, unit)
        if unit >= len(gang.fate.values) and gang.job_id in self.running and not gang.stopping:
            self._finish(gang)

    def _report(self, gang: Gang, unit: int) -> None:
        values = dict.fromkeys(gang.spec.trial.metrics, gang.fate.values[unit - 1])  # type: ignore[union-attr]
        self.give(TrialReported(job_id=gang.job_id, attempt=gang.attempt, step=unit, values=values))
        if self.save_s:
            self.give(
                CheckpointSaved(
                    job_id=gang.job_id, attempt=gang.attempt, step=unit, world_size=self.gpus
                )
            )
            self._later(self.save_s, partial(self._commit, gang, gang.attempt, unit))
        else:
            self._commit(gang, gang.attempt, unit)

    def _commit(self, gang: Gang, attempt: int, unit: int) -> None:
        gang.saved = unit
        made = CheckpointRef(
            job_id=gang.job_id, attempt=attempt, step=unit, world_size=1, commit_key="k"
        )
        self.give(CheckpointCommitted(job_id=gang.job_id, checkpoint=made, size_bytes=1, objects=1))

    def _finish(self, gang: Gang) -> None:
        if not gang.fate.failure:
            self.give(
                WorkerExited(
                    job_id=gang.job_id,
                    attempt=gang.attempt,
                    rank=0,
                    node_id="n1",
                    incarnation="i",
                    reason=ExitReason.FINISHED,
                    exit_code=0,
                )
            )
            self._end(gang, JobState.SUCCEEDED)
            return
        memory = gang.fate.failure == "memory"
        kind = FailureClass.OUT_OF_MEMORY if memory else FailureClass.USER_ERROR
        failed = gang_failed(
            gang.job_id, gang.attempt, self.now, FailureCause.USER_ERROR, "fail",
            message=gang.fate.failure, failure_class=kind,
        )  # fmt: skip
        if self.random.random() < 0.5:
            self.give(failed)
            self._end(gang, JobState.FAILED)
        else:
            self._end(gang, JobState.FAILED)
            self.give(failed)

    def _others_end(self) -> None:
        self.taken -= 1
        self._allocate()

    def _node_fails(self, gang: Gang) -> None:
        self.running.discard(gang.job_id)
        gang.unit = gang.saved
        self._release(gang, ReleaseReason.RESTARTING)
        self.queue.insert(0, gang.job_id)
        self._later(self.delay_s, self._allocate)

    def _release(self, gang: Gang, reason: ReleaseReason) -> None:
        since = gang.began or self.now
        used = self.gpus * (self.now - since).total_seconds()
        self.give(gang_released(gang.job_id, gang.attempt, since, reason, used))

    def _end(self, gang: Gang, state: JobState) -> None:
        had = gang.job_id in self.running
        if not had and gang.began is not None:
            return
        self.running.discard(gang.job_id)
        if had and self.others_s:
            self.taken += 1
            self._later(self.others_s, self._others_end)
        placed = self._placed()  # in the cycle of the release; the service reads it after the end
        self.give(
            JobStateChanged(
                job_id=gang.job_id, attempt=gang.attempt, previous=JobState.RUNNING, state=state
            )
        )
        if had:
            self._release(gang, ReleaseReason.CANCELLED)
        for one in placed:
            self._tell(one)
