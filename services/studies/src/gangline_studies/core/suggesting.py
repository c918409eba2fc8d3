"""Suggestions: when one is wanted, and what becomes of it.

The executor makes it outside (service/sampler.py). Its parameters are in `trial.proposed`, so a
replay never asks for them. A study has at most one open question, so that each suggestion knows
the ones before it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import ValidationError

from gangline_schemas.events.studies import EndReason, StudyEnding, TrialProposed
from gangline_schemas.study_file import Hyperband, StudySpec
from gangline_schemas.study_job import TemplateError, job_of
from gangline_schemas.study_space import Parameters
from gangline_studies.core.advance import may_propose, request_job, room, source_of
from gangline_studies.core.policy.rungs import bracket_of
from gangline_studies.core.state import StudyPlan, StudyState, Trial, find_trial, open_of_each


@dataclass(frozen=True, slots=True)
class Ask:
    """A question: the parameters of trial `number`.

    `over`: the study's ended trials in the order of their ends; `open`: those that have not ended.
    `start`: the start point that is next; `grid`: the place in the grid; `parent`: the trial whose
    parameters are changed a little.
    """

    study_id: str
    spec: StudySpec
    seed: int
    number: int
    results: int
    over: tuple[Trial, ...]
    open: tuple[Trial, ...]
    grid: int
    start: Parameters | None = None
    parent: Trial | None = None


@dataclass(frozen=True, slots=True)
class Suggestion:
    """The answer: parameters, and the sampler that made them."""

    study_id: str
    number: int
    parameters: Parameters
    by: str
    results: int
    parent: int | None = None


@dataclass(frozen=True, slots=True)
class NoSuggestion:
    """The sampler raised an error; the study ends."""

    study_id: str
    number: int
    reason: str


def wanted(state: StudyState) -> Mapping[str, Ask]:
    """The open question of each study, by key. Cost: the studies, and all open trials."""
    found, opened = {}, None
    for study_id in state.active:
        if room(state, study_id) and may_propose(state, study_id):
            if opened is None:
                opened = open_of_each(state)
            number = state.studies[study_id].next_number
            found[f"{study_id}/{number}"] = _question(state, study_id, opened.get(study_id, []))
    return found


def _question(state: StudyState, study_id: str, held: Sequence[Trial]) -> Ask:
    """The question for the study's next trial. `held`: its trials that are not over."""
    study = state.studies[study_id]
    starts = study.spec.start
    return Ask(
        study_id,
        study.spec,
        study.seed,
        study.next_number,
        study.results,
        state.over[study_id],
        tuple(held),
        study.grid,
        start=starts[study.starts] if study.starts < len(starts) else None,
        parent=find_trial(state, study_id, study.clones[0]) if study.clones else None,
    )


def take(plan: StudyPlan, answer: Suggestion | NoSuggestion) -> None:
    """Propose the trial, if it is still wanted."""
    study_id, number = answer.study_id, answer.number
    study = plan.state.studies.get(study_id)
    wants = study is not None and may_propose(plan.state, study_id) and room(plan.state, study_id)
    if study is None or not wants or study.next_number != number:
        return
    if isinstance(answer, NoSuggestion):
        _end(plan, study_id, answer.reason)
        return
    stopping = study.spec.stopping
    bracket = bracket_of(stopping, study_id, number) if isinstance(stopping, Hyperband) else 0
    parent = None if answer.parent is None else find_trial(plan.state, study_id, answer.parent)
    try:
        proposed = TrialProposed(
            study_id=study_id,
            number=number,
            parameters=answer.parameters,
            by=answer.by,
            results=answer.results,
            bracket=bracket,
            parent=answer.parent,
        )
        job_of(study.spec, study_id, number, answer.parameters)
    except (TemplateError, ValidationError) as error:
        _end(plan, study_id, f"the parameters of trial {number} make no job: {error}")
        return
    plan.add(study_id, proposed)
    trial = plan.state.trials[study_id, number]
    request_job(plan, study_id, trial, 1, source_of(study_id, parent))


def _end(plan: StudyPlan, study_id: str, message: str) -> None:
    ending = StudyEnding(study_id=study_id, reason=EndReason.SAMPLER, message=message)
    plan.add(study_id, ending)
