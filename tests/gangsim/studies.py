"""A study on the simulated platform: its trials are jobs of the real quota, scheduler and agents.

Its ranks report the objective after each step. The faults of the plan hit everything else; those of
`with_crashes` hit the studies service too.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gangline_schemas.catalog import Topic
from gangline_schemas.events.automation import StudySubmitted
from gangline_schemas.events.scheduling import GangAllocated
from gangline_schemas.events.studies import (
    StudyEnded,
    TrialCompleted,
    TrialFailed,
    TrialJobRequested,
    TrialMeasured,
    TrialProposed,
    TrialPruned,
    TrialWithdrawn,
)
from gangline_schemas.rank_protocol import Report, TrialPoint
from gangline_schemas.study_file import StudySpec
from gangline_studies.core import invariants
from gangline_studies.core import snapshot as studies_snapshot
from gangline_studies.core.decide import StudyDecider
from gangline_studies.core.suggesting import Ask, Suggestion
from gangline_worker.agent.decide.keys import GangKey
from gangsim.engine import Violation
from gangsim.parts import Parts
from gangsim.plan import Fault, JobPlan, Plan
from gangsim.services import Service
from gangsim.training import Training
from gangsim.world import World

if TYPE_CHECKING:
    from gangline_schemas.rank_protocol import FromRank

STUDY = "s1"
STEPS, TRIALS = 9, 8
PROGRAM_ERROR = "ValueError"
"""Of a fault of the program itself: that one is a result."""
ENDS = (TrialCompleted, TrialFailed, TrialPruned, TrialWithdrawn)
POINTS = ("poll", "takeover", "commit.begin", "commit.produced", "commit.offsets", "commit.ended")


def study(seed: int) -> StudySpec:
    """ASHA that stops or promotes, or no stopping, by the seed."""
    rungs = {"kind": "asha", "min_steps": 1, "max_steps": STEPS}
    stopping: dict[str, Any] = [{"kind": "none"}, rungs, {**rungs, "mode": "promote"}][seed % 3]
    return StudySpec.model_validate({
        "name": STUDY, "team": "red", "objective": {"metric": "loss"}, "sampler": "tpe",
        "space": {"x": {"type": "float", "low": 0, "high": 1}}, "stopping": stopping,
        "limits": {"trials": TRIALS, "parallel": 3, "failed": TRIALS},
        "job": {"command": ["train"], "resources": {"gpus": 1}, "restart": {"max": 1000},
                "stop_grace_seconds": 20},
    })  # fmt: skip


def with_crashes(plan: Plan) -> Plan:
    """The plan with crashes of the studies service at points of its loop."""
    source = random.Random(f"{plan.seed}/studies")
    crashes = [
        Fault(round(source.uniform(5, plan.chaos_s), 2), "crash", "studies", 60.0, detail=detail)
        for detail in source.choices(POINTS, k=10)
    ]
    faults = sorted((*plan.faults, *crashes), key=lambda fault: fault.at_s)
    jobs = tuple(replace(job, submit_s=min(job.submit_s, 60.0)) for job in plan.jobs[:2])
    kept = {job.job_id for job in jobs}
    gone = {job.job_id for job in plan.jobs} - kept
    kept_faults = [one for one in faults if one.target not in gone and one.kind != "user.team"]
    return replace(plan, jobs=jobs, faults=tuple(kept_faults))


def suggest(_key: str, effect: object) -> object:
    """A stand-in for the sampler: another answer to each question, the same in each run."""
    assert isinstance(effect, Ask)
    source = random.Random(f"{effect.number}/{effect.results}")
    return Suggestion(effect.study_id, effect.number, {"x": source.random()}, "tpe", effect.results)


class TrialTraining(Training):
    """Rank 0 also reports the objective."""

    parameters: Mapping[str, Any]

    def _tell(self, message: FromRank) -> None:
        super()._tell(message)
        rank = self.ranks.get(0)
        if isinstance(message, Report) and rank is not None and rank.running:
            value = abs(float(self.parameters["x"]) - 0.3) + 1 / self.step
            rank.say(TrialPoint(step=self.step, values={"loss": value}), b"", b"")


class Jobs(dict[str, JobPlan]):
    """The planned jobs, and those of trials as they are asked for."""

    def __missing__(self, job_id: str) -> JobPlan:
        made = JobPlan(job_id, "red", 1, STEPS, 4.0, 2, 0.0, restarts=1000)
        return self.setdefault(job_id, made)


class StudyWorld(World):
    """A world with a study beside its jobs."""

    def __init__(self, plan: Plan, parts: Parts, *, keep_trace: bool = False) -> None:
        super().__init__(plan, parts, keep_trace=keep_trace)
        self.jobs = Jobs(self.jobs)
        self.engine.after(5.0, self._submit)

    def _services(self) -> list[tuple[Service, str]]:
        service = Service(
            "studies", StudyDecider, studies_snapshot.fingerprint, studies_snapshot.codec, suggest
        )
        return [*super()._services(), (service, "ab")]

    def _submit(self) -> None:
        event = StudySubmitted(study_id=STUDY, spec=study(self.plan.seed), user="u")
        self.users.send(STUDY, event)

    def training(self, allocation: GangAllocated) -> Training:
        """The training of a trial reports its objective."""
        key = GangKey(allocation.job_id, allocation.attempt)
        trial = allocation.spec.trial
        if trial is None or key in self.trainings:
            return super().training(allocation)
        step = allocation.resume.step if allocation.resume is not None else 0
        made = TrialTraining(self.engine, self.jobs[key.job_id], key, 1, step)
        made.parameters = allocation.spec.hyperparameters
        self.trainings[key] = made
        return made

    def after_step(self) -> None:
        """The invariants of the live service hold too."""
        super().after_step()
        loop = self.live_loops.get("studies")
        problems = invariants.violations(loop.state) if loop is not None else []  # type: ignore[arg-type]
        if problems:
            raise Violation(f"studies: {problems[0]}")

    def own_events(self) -> list[Any]:
        """All events of the log, in order."""
        log = self.broker.dump(self.names.name(Topic.STUDIES))
        return [self.receive(record).envelope.data for record in log]

    def unsettled(self) -> str:
        """Whether the study has ended."""
        ended = any(isinstance(event, StudyEnded) for event in self.own_events())
        return "" if ended else f"{STUDY} has not ended"

    def check_more(self) -> None:
        """One proposal and one end of each trial, and nothing that hardware did is a result."""
        events = self.own_events()
        proposed = {e.number: e.parameters for e in events if isinstance(e, TrialProposed)}
        ends = sorted(e.number for e in events if isinstance(e, ENDS))
        if ends != sorted(proposed):
            raise Violation(f"trials {sorted(proposed)} ended as {ends}")
        for event in events:
            if isinstance(event, TrialJobRequested):
                held = {"x": event.spec.hyperparameters["x"]}
                if held != proposed[event.number]:
                    raise Violation(f"{event.job_id} has other parameters than its trial")
            if isinstance(event, TrialFailed) and PROGRAM_ERROR not in event.message:
                raise Violation(f"trial {event.number} failed: {event.message}")
        steps: dict[int, int] = {}
        for event in events:
            if isinstance(event, TrialMeasured):
                if event.step <= steps.get(event.number, 0):
                    raise Violation(f"trial {event.number} was measured twice at {event.step}")
                steps[event.number] = event.step
        kept = [number for number in proposed if number not in _withdrawn(events)]
        if len(kept) != TRIALS:
            raise Violation(f"{len(kept)} trials of {TRIALS} were made")
        if not any(isinstance(e, TrialCompleted | TrialFailed) for e in events):
            raise Violation("no trial was completed")


def _withdrawn(events: list[Any]) -> set[int]:
    return {event.number for event in events if isinstance(event, TrialWithdrawn)}
