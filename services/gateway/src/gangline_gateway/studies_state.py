"""Follows the log of the studies service: studies and trials for answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from typing import Any

from gangline_bus.snapshot import SnapshotStore
from gangline_gateway.followed import Copies, Followed, only_state
from gangline_schemas.api.studies import (
    BestTrial,
    Study,
    StudyDetail,
    StudyObjective,
    Trial,
    TrialCounts,
)
from gangline_schemas.catalog import Topic
from gangline_schemas.mlflow_workspace import study_experiment
from gangline_studies.core.advance import spent_gpu_hours
from gangline_studies.core.decide import StudyDecider
from gangline_studies.core.snapshot import codec
from gangline_studies.core.state import (
    Phase,
    StudyState,
    all_trials,
    find_trial,
    job_id,
    open_trials,
)
from gangline_studies.core.state import Study as StudyFacts
from gangline_studies.core.state import Trial as TrialFacts
from gangline_studies.core.values import is_feasible

HOUR_S = 3600


def followed(store: SnapshotStore | None = None) -> Followed[StudyState]:
    """The follower of gangline.studies. A copy costs O(studies and live trials)."""
    return Followed(StudyDecider(), codec(), _copy, store)


def studies_of(copies: Copies[StudyState]) -> StudyState:
    """The state of its one partition. Raises NoStateError."""
    return only_state(copies, Topic.STUDIES)


def _copy(state: StudyState) -> StudyState:
    """A copy of what answers read; the other maps are shared and must not be read."""
    return replace(
        state,
        studies=dict(state.studies),
        trials=dict(state.trials),
        over=dict(state.over),
    )


def newest(state: StudyState) -> Iterator[tuple[str, StudyFacts]]:
    """All studies with their ids, the newest first."""
    return iter(sorted(state.studies.items(), key=_created, reverse=True))


def _created(item: tuple[str, StudyFacts]) -> tuple[datetime, str]:
    return item[1].created_at, item[0]


def trials_of(state: StudyState, study_id: str) -> list[TrialFacts]:
    """The trials of a study by number, without those that were withdrawn."""
    found = all_trials(state, study_id)
    return [trial for trial in found if trial.phase is not Phase.WITHDRAWN]


def summary(state: StudyState, study_id: str, facts: StudyFacts, now: datetime) -> Study:
    """A study in short. Cost: the trials that are not over, and a search for the best one."""
    return Study(**_fields(state, study_id, facts, now))


def detail(state: StudyState, study_id: str, facts: StudyFacts, now: datetime) -> StudyDetail:
    """A study with its spec."""
    return StudyDetail(**_fields(state, study_id, facts, now), seed=facts.seed, spec=facts.spec)


def _fields(state: StudyState, study_id: str, facts: StudyFacts, now: datetime) -> dict[str, Any]:
    spec = facts.spec
    project = spec.project or spec.job.get("project")
    project = project if isinstance(project, str) else None
    return {
        "study_id": study_id,
        "name": spec.name,
        "team": spec.team,
        "project": project,
        "user": facts.user,
        "state": phase(facts),
        "reason": facts.ending.value if facts.ending else "",
        "message": facts.message,
        "objectives": objectives(facts),
        "sampler": spec.sampler,
        "stopping": spec.stopping.kind,
        "created_at": facts.created_at,
        "ended_at": facts.ended_at,
        "trials": counts(state, study_id, facts),
        "best": _best(state, study_id, facts),
        "gpu_hours": spent_gpu_hours(state, study_id, now),
        "gpu_hours_limit": spec.limits.gpu_hours,
        "experiment": study_experiment(spec.team, project, study_id),
    }


def phase(facts: StudyFacts) -> str:
    """Whether it runs, ends or has ended."""
    if facts.ended_at is not None:
        return "ended"
    return "ending" if facts.ending is not None else "running"


def objectives(facts: StudyFacts) -> list[StudyObjective]:
    """The objectives of a study, the first one first."""
    return [
        StudyObjective(metric=each.metric, direction=each.direction)
        for each in facts.spec.objective
    ]


def counts(state: StudyState, study_id: str, facts: StudyFacts) -> TrialCounts:
    """The trials by state, without those that were withdrawn."""
    found = Counter(each.phase for each in open_trials(state, study_id))
    known = TrialCounts(
        limit=facts.spec.limits.trials,
        waiting=found[Phase.WAITING],
        running=found[Phase.RUNNING],
        paused=found[Phase.PAUSED],
        completed=facts.completed,
        pruned=facts.pruned,
    )
    return known.model_copy(update={"failed": facts.proposed - known.total})


def _best(state: StudyState, study_id: str, facts: StudyFacts) -> BestTrial | None:
    found = None if facts.best is None else find_trial(state, study_id, facts.best)
    if found is None or facts.best_value is None:
        return None
    return BestTrial(
        number=found.number,
        job_id=job_id(study_id, found.number, max(1, found.part)),
        value=facts.best_value,
        values=found.values,
        parameters=found.parameters,
    )


def trial(study_id: str, facts: StudyFacts, found: TrialFacts, now: datetime) -> Trial:
    """A trial as answers show it."""
    return Trial(**trial_fields(study_id, facts, found, now))


def trial_fields(
    study_id: str, facts: StudyFacts, found: TrialFacts, now: datetime
) -> dict[str, Any]:
    """The fields of a trial."""
    return {
        "number": found.number,
        "job_id": job_id(study_id, found.number, max(1, found.part)),
        "state": found.phase.value,
        "reason": found.why.value if found.why else "",
        "parameters": found.parameters,
        "values": found.values,
        "value": value_of(facts, found),
        "feasible": is_feasible(facts.spec, found.values),
        "step": found.step,
        "rung": found.rung,
        "bracket": found.bracket,
        "parent": found.parent,
        "parts": found.part,
        "by": found.by,
        "attempt": found.attempt,
        "gpus": found.gpus,
        "gpu_hours": (found.gpu_seconds + found.running_gpu_seconds(now)) / HOUR_S,
        "proposed_at": found.proposed_at,
        "ended_at": found.ended_at,
    }


def value_of(facts: StudyFacts, found: TrialFacts) -> float | None:
    """The trial's value of the first objective."""
    return found.values.get(facts.spec.objective[0].metric)
