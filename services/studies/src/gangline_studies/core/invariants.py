"""The invariants of the state."""

from __future__ import annotations

from collections.abc import Iterator

from gangline_studies.core.state import StudyState, job_id


def violations(state: StudyState) -> list[str]:
    """Sentences about what does not hold; [] when all is well. Cost: the live trials."""
    found = []
    for study_id in state.active:
        found += [f"study {study_id}: {problem}" for problem in _of_study(state, study_id)]
    for (study_id, number), trial in state.trials.items():
        if study_id not in state.active:
            found.append(f"study {study_id}: has ended, and trial {number} has not")
        elif trial.phase.terminal and not trial.live:
            found.append(f"study {study_id}: trial {number} is over and is kept as open")
    return found


def _of_study(state: StudyState, study_id: str) -> Iterator[str]:
    study = state.studies[study_id]
    limits = study.spec.limits
    if len(study.live) > limits.parallel:
        yield f"{len(study.live)} of {limits.parallel} jobs live"
    if study.proposed > limits.trials:
        yield f"{study.proposed} of {limits.trials} trials proposed"
    waiting = 0
    for number in study.live:
        trial = state.trials.get((study_id, number))
        if trial is None or not trial.live:
            yield f"trial {number} is not live"
        elif job_id(study_id, number, trial.part) not in state.jobs:
            yield f"trial {number} is live and has no job"
        else:
            waiting += not trial.attempt and not trial.stopping
    if waiting > limits.ahead:
        yield f"{waiting} of {limits.ahead} trials wait"
