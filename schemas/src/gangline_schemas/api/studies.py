"""Studies, their trials, and what is computed of them."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from gangline_schemas.api.base import OPEN_WORD, OR_NONE, Answer
from gangline_schemas.job import JobSpec
from gangline_schemas.study_file import StudySpec
from gangline_schemas.study_space import Value

StudyPhase = Annotated[Literal["running", "ending", "ended"], OPEN_WORD]
TrialPhase = Annotated[
    Literal["waiting", "running", "paused", "completed", "pruned", "failed"], OPEN_WORD
]
Direction = Annotated[Literal["minimize", "maximize"], OPEN_WORD]
Values = dict[str, float | None]
ENOUGH_TRIALS = 50
"""From fewer completed trials, importances say little."""


class StudyObjective(Answer):
    """A metric, and which way it is better."""

    metric: str
    direction: Direction


class TrialCounts(Answer):
    """The trials of a study by state; `limit`: the most that it may have."""

    limit: int
    waiting: int = 0
    running: int = 0
    paused: int = 0
    completed: int = 0
    pruned: int = 0
    failed: int = 0

    @property
    def total(self) -> int:
        """All trials so far."""
        return self.waiting + self.running + self.paused + self.ended

    @property
    def ended(self) -> int:
        """Those that have their result, or will have none."""
        return self.completed + self.pruned + self.failed


class BestTrial(Answer):
    """The best completed trial by the first objective, of those that break no constraint."""

    number: int
    job_id: str
    value: float
    values: Values
    parameters: dict[str, Value]


class Study(Answer):
    """A study in short."""

    study_id: str
    name: str
    team: str
    project: str | None
    user: str
    state: StudyPhase
    reason: str = Field(description="Why it ends or ended: trials, gpu_hours, stopped, ...")
    message: str
    objectives: list[StudyObjective]
    sampler: str
    stopping: str
    created_at: datetime
    ended_at: datetime | None
    trials: TrialCounts
    best: BestTrial | None
    gpu_hours: float = Field(description="Used so far, also by trials that run.")
    gpu_hours_limit: float | None
    experiment: str = Field(description="The MLflow experiment that has its runs.")

    @property
    def ended(self) -> bool:
        """Whether no trial of it runs or will run."""
        return self.state == "ended"


class StudyDetail(Study):
    """A study with its spec."""

    seed: int
    spec: Annotated[StudySpec | None, OR_NONE]


class StudyPage(Answer):
    """Studies, the newest first."""

    studies: list[Study]
    cursor: str | None


class StudyPlan(Answer):
    """A dry run: the trials that a study would run; nothing was started."""

    study_id: str
    trials: int = Field(description="The most that it would run.")
    points: float | None = Field(description="Of the grid; null where the space is continuous.")
    job: JobSpec = Field(description="The job of a trial, with a point of the space in it.")
    notes: list[str]
    rejected: bool
    spec: StudySpec


class Trial(Answer):
    """A trial. `values`: its last report, or its result once it has ended."""

    number: int
    job_id: str = Field(description="Of its newest job, which is its run too.")
    state: TrialPhase
    reason: str = Field(description="Why it was pruned or failed.")
    parameters: dict[str, Value]
    values: Values
    value: float | None = Field(description="Of the first objective.")
    feasible: bool = Field(description="Whether its values break no constraint.")
    step: int
    rung: int = Field(description="So many rungs it has passed.")
    bracket: int
    parent: int | None = Field(description="The trial from whose checkpoint it began.")
    parts: int = Field(description="Its jobs so far: one more after each pause.")
    by: str = Field(description="The sampler that proposed it, start or pbt.")
    attempt: int
    gpus: int = Field(description="That it has now.")
    gpu_hours: float
    proposed_at: datetime
    ended_at: datetime | None


class TrialPage(Answer):
    """Trials of a study."""

    trials: list[Trial]
    cursor: str | None


class TrialCurve(Answer):
    """The first objective of a trial by step; null where it was not a finite number."""

    number: int
    state: TrialPhase
    steps: list[int]
    values: list[float | None]


class TrialDetail(Trial):
    """A trial with its curve."""

    curve: TrialCurve


class StudyCurves(Answer):
    """The curves of the best, the live and the newest trials."""

    metric: str
    direction: Direction
    rungs: list[int] = Field(description="The steps at which trials are compared.")
    curves: list[TrialCurve]
    left_out: int = Field(description="Further trials, whose curves are not here.")


class ParameterImportance(Answer):
    """How much a parameter matters: shares of 1 over all parameters."""

    name: str
    importance: float


class StudyImportance(Answer):
    """PED-ANOVA over the completed trials: what the best tenth of them have in common."""

    metric: str
    trials: int = Field(description="That it was computed from.")
    parameters: list[ParameterImportance]


class BestPoint(Answer):
    """From here on this trial was the best."""

    gpu_hours: float = Field(description="Of this trial and those that had ended before it.")
    at: datetime
    number: int
    value: float


class BestSoFar(Answer):
    """How the best value improved over the GPU-hours that the study used."""

    metric: str
    direction: Direction
    points: list[BestPoint]
    gpu_hours: float


class ParetoFront(Answer):
    """The completed trials that no other one beats in all objectives."""

    objectives: list[StudyObjective]
    trials: list[Trial]
