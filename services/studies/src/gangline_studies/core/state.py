"""The state of the studies service: the fold of gangline.studies and of nothing else.

Everything here is a dict of values that never change. A trial is in `trials` until it has its
result and its job has ended; then it is in `over`, in the order of the ends. An ended study is
forgotten by the rule of gangline_schemas.memory, or earlier (forgetting.py).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Literal, NamedTuple

from gangline_bus.plan import Plan
from gangline_schemas.events.studies import EndReason, PruneReason, TrialFailure
from gangline_schemas.job import JobState
from gangline_schemas.study_file import StudySpec
from gangline_schemas.study_space import Parameters

REQUESTS_KEPT = 10_000
_JOB_ID = re.compile(r"(.+)-t([0-9]{1,5})(?:-([0-9]{1,9}))?")
CURVE_POINTS, CURVE_POINTS_ENDED = 256, 64
"""So many measurements of a trial are kept, and after its study's end; every other one goes."""


class Phase(StrEnum):
    """Where a trial is. The last four are its ends: it ends in exactly one of them."""

    WAITING = "waiting"  # its first job has never had GPUs
    RUNNING = "running"
    PAUSED = "paused"  # at a rung; its job ends, or has ended
    COMPLETED = "completed"
    PRUNED = "pruned"
    FAILED = "failed"
    WITHDRAWN = "withdrawn"

    @property
    def terminal(self) -> bool:
        """Whether the trial has ended for ever."""
        return self not in {Phase.WAITING, Phase.RUNNING, Phase.PAUSED}


@dataclass(frozen=True, slots=True)
class Saved:
    """A checkpoint of a trial."""

    part: int
    attempt: int
    step: int


Curve = tuple[tuple[int, float | None], ...]
"""Steps that rise, and the value at each; None: it was not finite."""


class Trial(NamedTuple):
    """A trial.

    - `live`: its newest job, that of `part`, has not ended; `stopping`: it was asked to stop.
    - `attempt`: the newest with GPUs, 0 before the first; `exited`: the one whose rank 0 ended.
    - `logged`: some of its evaluations came by MLflow; `logs_read`: all of the newest job did.
    - `stale_at`: while it waits, when the first result came that it does not know.
    - `gpus`, `since`: of the gang that has GPUs now.
    - `curve`: of the first objective.
    - `values`: its last report, or its result once it has ended.
    - `saved`: its newest committed checkpoint. While there is none, `saving` is the one on its way.
    - `rung`: the next one that it can reach; `paused_rung`: where it is paused.
    """

    number: int
    parameters: Parameters
    by: str
    results: int
    proposed_at: datetime
    bracket: int = 0
    parent: int | None = None
    phase: Phase = Phase.WAITING
    part: int = 0
    live: bool = False
    stopping: bool = False
    attempt: int = 0
    exited: int = 0
    logged: bool = False
    logs_read: bool = False
    job_state: JobState | Literal["rejected"] | None = None
    job_ended_at: datetime | None = None
    message: str = ""
    gpus: int = 0
    since: datetime | None = None
    gpu_seconds: float = 0.0
    step: int = 0
    curve: Curve = ()
    values: dict[str, float | None] = {}  # noqa: RUF012 - never changed in place
    rung: int = 0
    paused_rung: int | None = None
    saved: Saved | None = None
    saving: Saved | None = None
    why: PruneReason | TrialFailure | None = None
    ended_at: datetime | None = None
    stale_at: datetime | None = None

    def running_gpu_seconds(self, now: datetime) -> float:
        """GPU-seconds of the gang that has GPUs now: not in `gpu_seconds` yet."""
        if self.since is None:
            return 0.0
        return self.gpus * max((now - self.since).total_seconds(), 0.0)


class Study(NamedTuple):
    """A study.

    - `next_number`: of the next trial.
    - `proposed`: trials that were not withdrawn; of them `starts` start points, and `grid` points
      of the grid.
    - `results`: as many as the sampler knows.
    - `live`: the numbers of trials with a job that has not ended; `open`: so many trials are not
      over. `awaiting`: trials whose job has ended, and whose result is not known yet.
    - `best`: the best completed trial that breaks no constraint, by the first objective.
    - `clones`: the trials that new members of a population will continue from.
    - `rungs_from`: the first rung of a population that is remembered.
    - `size_bytes`: of the spec as JSON.
    - `withdrawn`: so many trials were withdrawn since one last began; `waits_since`: when the first
      of them was proposed. The next one has its age in the queue.
    """

    spec: StudySpec
    user: str
    seed: int
    created_at: datetime
    next_number: int = 0
    proposed: int = 0
    starts: int = 0
    grid: int = 0
    results: int = 0
    failed: int = 0
    completed: int = 0
    pruned: int = 0
    gpu_seconds: float = 0.0
    live: tuple[int, ...] = ()
    paused: int = 0
    open: int = 0
    awaiting: tuple[int, ...] = ()
    best: int | None = None
    best_value: float | None = None
    clones: tuple[int, ...] = ()
    rungs_from: int = 0
    size_bytes: int = 0
    ending: EndReason | None = None
    message: str = ""
    ended_at: datetime | None = None
    withdrawn: int = 0
    waits_since: datetime | None = None


@dataclass(frozen=True, slots=True)
class JobOf:
    """The trial whose job this is."""

    study_id: str
    number: int
    part: int


Ranked = tuple[float, int]
"""A value that is better when it is lower, and the trial's number."""


@dataclass(slots=True)
class StudyState:
    """The state.

    - `active`: the studies that have not ended.
    - `jobs`: the newest job of each trial that is not over, by its id.
    - `rungs`: by study, bracket and rung the values that reached it, sorted.
    - `paused`: by study and rung the values of trials that are paused there, sorted.
    - `over`: the ended trials of each study.
    - `requests`: the keys of answered requests, newest last.
    """

    studies: dict[str, Study] = field(default_factory=dict)
    active: dict[str, None] = field(default_factory=dict)
    ended: dict[str, datetime] = field(default_factory=dict)
    trials: dict[tuple[str, int], Trial] = field(default_factory=dict)
    over: dict[str, tuple[Trial, ...]] = field(default_factory=dict)
    jobs: dict[str, JobOf] = field(default_factory=dict)
    rungs: dict[tuple[str, int, int], tuple[Ranked, ...]] = field(default_factory=dict)
    paused: dict[tuple[str, int], tuple[Ranked, ...]] = field(default_factory=dict)
    requests: dict[str, None] = field(default_factory=dict)


StudyPlan = Plan[StudyState, None]


def job_id(study_id: str, number: int, part: int) -> str:
    """The id of a trial's job: the first has the trial's name alone."""
    return f"{study_id}-t{number}" if part == 1 else f"{study_id}-t{number}-{part}"


def job_of_id(name: str) -> JobOf | None:
    """The trial and part of a job's id, as `job_id` makes it; None: it is another one."""
    found = _JOB_ID.fullmatch(name)
    return None if found is None else JobOf(found[1], int(found[2]), int(found[3] or 1))


def open_trials(state: StudyState, study_id: str) -> list[Trial]:
    """The trials of a study that are not over. Cost: those of all studies."""
    return [trial for (held, _), trial in state.trials.items() if held == study_id]


def open_of_each(state: StudyState) -> dict[str, list[Trial]]:
    """The trials that are not over, by study. Cost: those of all studies, once."""
    found: dict[str, list[Trial]] = {}
    for (study_id, _), trial in state.trials.items():
        found.setdefault(study_id, []).append(trial)
    return found


def all_trials(state: StudyState, study_id: str) -> list[Trial]:
    """Every trial of a study that is known, by number. Cost: its trials and all open ones."""
    found = [*state.over[study_id], *open_trials(state, study_id)]
    return sorted(found, key=lambda trial: trial.number)


def find_trial(state: StudyState, study_id: str, number: int) -> Trial | None:
    """The trial of this number; None: it is not known. Cost: the study's trials."""
    found = state.trials.get((study_id, number))
    if found is not None:
        return found
    return next((each for each in state.over[study_id] if each.number == number), None)
