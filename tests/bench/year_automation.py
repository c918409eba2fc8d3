"""What studies and registry have of the year: all of it goes by their deciders.

- Studies: 200 a week, of 50 trials each with ASHA; 20 at once.
- Registry: 100 versions a day of 200 models with a gate, a baseline and watched data.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from year_work import START, TEAMS, Run, Service, allocated, ended, node_name
from year_work import Made as MadeService

from gangline_bus.codec import Received
from gangline_bus.decision import EffectDone, Input, Tick
from gangline_registry.core.decide import RegistryDecider
from gangline_registry.core.model import (
    Compare,
    Compared,
    CompareProfiles,
    Made,
    MakeVersion,
    ProfilesCompared,
    Projected,
)
from gangline_registry.core.snapshot import codec as registry_codec
from gangline_schemas.base import Event
from gangline_schemas.catalog import topic_of
from gangline_schemas.envelope import Envelope
from gangline_schemas.events.automation import StudySubmitted
from gangline_schemas.events.checkpoints import CheckpointPromoted
from gangline_schemas.events.model_requests import (
    EvaluationRequested,
    GateRequested,
    ModelPromotionRequested,
    SnapshotProfiled,
    VersionRequested,
)
from gangline_schemas.events.studies import TrialJobRequested, TrialJobStopRequested
from gangline_schemas.events.workers import ExitReason, TrialReported, WorkerExited
from gangline_schemas.gate_file import Gate
from gangline_schemas.models import Evaluation, Paired, ProfileRef, SuiteComparison
from gangline_schemas.study_file import StudySpec
from gangline_studies.core.decide import StudyDecider
from gangline_studies.core.snapshot import codec as studies_codec
from gangline_studies.core.state import Phase, job_id
from gangline_studies.core.suggesting import Ask, Suggestion


@dataclass
class Automated(Service):
    """A service to which all of the year is given as it is to the real one.

    A cycle is decision, fold, check, what is observed of a Tick, and the effects that are wanted.
    """

    given: int = 0
    answered: set[str] = field(default_factory=set)
    wanted: Mapping[str, object] = field(default_factory=dict)
    answering: bool = False

    def go_live(self) -> None:
        self.begin_work()
        self.written.clear()
        self.cycles.clear()

    def begin_work(self) -> None:
        """What runs at the end of the year."""

    def received(self, event: Event) -> Received:
        """As it is read from its topic."""
        self.given += 1
        number = (self.now - START) // timedelta(microseconds=1)
        envelope = Envelope(f"{number}-{self.given}", "/bench", self.now, "s", event)
        return Received(envelope, topic_of(event.type).value, 0, number)

    def give(self, kind: str, event: Event) -> list[Event]:
        return self.followed(self.cycle(kind, self.received(event)))

    def tick(self) -> list[Event]:
        return self.followed(self.cycle("tick", Tick()))

    def done(self, key: str, result: object) -> list[Event]:
        return self.followed(self.cycle("effect", EffectDone(key, result)))

    def cycle(self, kind: str, item: Input) -> list[Event]:
        """Decide one input, then do the effects that are wanted, unless a caller does so."""
        began_s = time.thread_time()
        if isinstance(item, Tick):
            self.observe(item)
        observed_s = time.thread_time() - began_s
        events = super().cycle(kind, item)
        began_s = time.thread_time()
        self.wanted = self.decider.effects(self.state, self.soft)
        self.cycles[kind][-1] += (observed_s + time.thread_time() - began_s) * 1e3
        self.answered &= self.wanted.keys()
        if self.answering:
            return events
        self.answering = True
        while new := self.wanted.keys() - self.answered:
            for key in [one for one in self.wanted if one in new]:
                if key in self.answered or key not in self.wanted:
                    continue
                self.answered.add(key)
                result = self.answer(self.wanted[key])
                if result is not None:
                    events += self.done(key, result)
        self.answering = False
        return events

    def answer(self, effect: object) -> object:
        """The result of an effect; None: it has none yet."""
        return None

    def followed(self, events: list[Event]) -> list[Event]:
        """What the rest of the platform does at once about these decisions."""
        return events

    def released(self, job: str, attempt: int = 1) -> None:
        """A gang's GPUs are free."""
        for event in ended(job, attempt, self.now - timedelta(hours=1)):
            self.give("ended", event)


STUDIES_LIVE, TRIALS = 20, 50
STUDY: dict[str, Any] = {
    "name": "lr-sweep",
    "objective": {"metric": "eval_loss"},
    "space": {
        "lr": {"type": "float", "low": 1e-4, "high": 1e-1, "log": True},
        "width": {"type": "int", "low": 64, "high": 1024},
        "opt": {"type": "choice", "values": ["sgd", "adam"]},
    },
    "sampler": "random",
    "stopping": {"kind": "asha", "min_steps": 10, "max_steps": 90, "mode": "stop"},
    "limits": {"trials": TRIALS, "parallel": 8},
    "job": {"command": ["python", "train.py"], "resources": {"gpus": 1}},
}
NEXT_STEP = {0: 10, 10: 30, 30: 90}


class StudyYear(Automated):
    """Trials report at 10, 30 and 90 steps, and ASHA stops most of them."""

    def end_run(self, run: Run) -> None:
        study_id = f"study-{run.number:08d}"
        self._submit(study_id, run.number)
        while study_id in self.state.active:
            self._report(study_id)

    def begin_work(self) -> None:
        for number in range(STUDIES_LIVE):
            self._submit(f"live-{number:08d}", number)
            for _ in range(number * 2):
                self._report(f"live-{number:08d}")

    def round(self) -> None:
        self.now += self.between_runs / TRIALS
        chance = random.Random(self.now.timestamp())
        self._report(chance.choice([*self.state.active]))
        while len(self.state.active) < STUDIES_LIVE:
            number = (self.now - START) // timedelta(seconds=1)
            self._submit(f"new-{number:010d}-{len(self.state.active)}", number)
        self.tick()

    def _submit(self, study_id: str, number: int) -> None:
        spec = StudySpec.model_validate({**STUDY, "team": TEAMS[number % len(TEAMS)]})
        self.give("submitted", StudySubmitted(study_id=study_id, spec=spec, user="ada"))

    def _report(self, study_id: str) -> None:
        """The oldest running trial reports; after 90 steps it ends."""
        number = self.state.studies[study_id].live[0]
        trial = self.state.trials[study_id, number]
        job, step = job_id(study_id, number, trial.part), NEXT_STEP[trial.step]
        value = random.Random(f"{study_id}{number}{step}").random()
        reported = TrialReported(job_id=job, attempt=1, step=step, values={"eval_loss": value})
        self.give("reported", reported)
        trial = self.state.trials.get((study_id, number))
        if step == 90 and trial is not None and trial.phase is Phase.RUNNING:
            exited = WorkerExited(
                job_id=job, attempt=1, rank=0, node_id="n", incarnation="i",
                reason=ExitReason.FINISHED, exit_code=0,
            )  # fmt: skip
            self.give("exited", exited)
            self.released(job)

    def answer(self, effect: object) -> object:
        assert isinstance(effect, Ask)
        chance = random.Random(f"{effect.study_id}{effect.number}")
        parameters = {
            "lr": 10 ** chance.uniform(-4, -1),
            "width": chance.randint(64, 1024),
            "opt": chance.choice(["sgd", "adam"]),
        }
        return Suggestion(
            effect.study_id, effect.number, parameters, by="random", results=effect.results
        )

    def followed(self, events: list[Event]) -> list[Event]:
        for event in events:
            if isinstance(event, TrialJobRequested):
                self.give("allocated", allocated(event.job_id, event.spec, [node_name(0)], gpus=1))
            elif isinstance(event, TrialJobStopRequested):
                self.released(event.job_id)
        return events


MODELS = 200


class RegistryYear(Automated):
    """Each version is better than the one before: it is compared, promoted, and shown in MLflow."""

    def begin(self) -> None:
        self.tick()
        for number in range(MODELS):
            team, model = self._model(number)
            gate = Gate.model_validate(
                {
                    "team": team, "model": model, "aliases": ["champion"], "baseline": "current",
                    "first": "accept", "suites": {"qa": {"rule": "better"}},
                    "training_data": {"max_age_days": 30},
                }
            )  # fmt: skip
            self.give("gate", GateRequested(config=gate, user="ada"))

    def end_run(self, run: Run) -> None:
        self._version(run.number, run.job_id)

    def round(self) -> None:
        self.now += self.between_runs
        number = (self.now - START) // timedelta(seconds=1)
        self._version(number, f"new-{number:012d}")
        self.tick()

    def _model(self, number: int) -> tuple[str, str]:
        return TEAMS[number % len(TEAMS)], f"model-{number % MODELS:03d}"

    def _version(self, number: int, job: str) -> None:
        """Save, data, version, scores, promotion."""
        team, model = self._model(number)
        self.give("saved", CheckpointPromoted(job_id=job, attempt=1, step=100, run=f"{job}-p"))
        snapshot = f"data-{model}@xxh3-{number:032x}"
        profile = ProfileRef(
            digest=f"{number:064x}", key=f"registry/profiles/{number}", rows=1000, columns=20,
            made_at=self.now,
        )  # fmt: skip
        profiled = SnapshotProfiled(team=team, snapshot=snapshot, profile=profile, user="ada")
        self.give("profiled", profiled)
        of = {"team": team, "model": model, "user": "ada"}
        self.give("asked", VersionRequested(**of, job_id=job, snapshot=snapshot))
        version = self.state.numbered[f"{team}/{model}"][-1]
        scored = Evaluation(
            digest=f"{number:064x}", key=f"registry/{number}", items=1319, binary=True, mean=0.6
        )
        self.give(
            "scored", EvaluationRequested(**of, version=version, suite="qa", evaluation=scored)
        )
        self.give("promoted", ModelPromotionRequested(**of, alias="champion", version=version))
        assert self.state.aliases[f"{team}/{model}/champion"].version == version

    def answer(self, effect: object) -> object:
        match effect:
            case MakeVersion(registration=wanted):
                held = self.state.numbered.get(f"{wanted.team}/{wanted.model}", (0,))
                return Made(held[-1] + 1)
            case Compare():
                paired = Paired(items=effect.candidate.items, wins=200, losses=20)
                return Compared(
                    SuiteComparison(
                        suite=effect.suite, candidate=effect.candidate.digest,
                        baseline=effect.baseline.digest, paired=paired,
                    )
                )  # fmt: skip
            case CompareProfiles():
                return ProfilesCompared(())
            case _:
                return Projected()


AUTOMATION: dict[str, MadeService] = {
    "studies": lambda: StudyYear(StudyDecider(), studies_codec(), runs_a_day=200 // 7),
    "registry": lambda: RegistryYear(
        RegistryDecider(), registry_codec(), runs_a_day=100, thinned=1
    ),
}
