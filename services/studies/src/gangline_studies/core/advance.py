"""The next steps of a study: it ends, promotes paused trials, or withdraws the one that waits."""

from __future__ import annotations

from datetime import datetime, timedelta

from gangline_schemas.clocks import lasts
from gangline_schemas.events.studies import (
    BestTrial,
    EndReason,
    PruneReason,
    StudyEnded,
    StudyEnding,
    TrialJobRequested,
    TrialPromoted,
    TrialWithdrawn,
)
from gangline_schemas.study_file import Asha, Pbt
from gangline_schemas.study_job import job_of
from gangline_schemas.study_space import grid_points
from gangline_studies.core.measuring import SERVICE, prune, stop
from gangline_studies.core.policy import rungs
from gangline_studies.core.state import (
    Phase,
    Study,
    StudyPlan,
    StudyState,
    Trial,
    find_trial,
    job_id,
)
from gangline_studies.core.values import sampler_of

SETTLED = timedelta(seconds=1)
"""A trial may get the GPUs of the one whose result came: so long it is not withdrawn."""
WITHDRAWN_IN_ROW = 3
"""So often (times `ahead`) trials are withdrawn before one begins. The next one has their age in
the queue, but others may get GPUs that become free until its job is there."""
BEGUN, COMMITTED = timedelta(seconds=30), timedelta(minutes=30)
"""So long after a job's end a trial waits for its first checkpoint, and for one on its way."""
MOST_AT_ONCE = 500
"""So many paused trials end at once; the others at the next Ticks."""
FROM_RESULTS = frozenset({"tpe", "cmaes"})
"""Samplers whose suggestions depend on results."""


def advance(plan: StudyPlan, study_id: str) -> None:
    """Decide what follows from the study as it is now."""
    study = plan.state.studies.get(study_id)
    if study is None or study.ended_at is not None:
        return
    if study.ending is None:
        found = _end_of(plan.state, study_id, plan.now)
        if found is not None:
            reason, message = found
            plan.add(study_id, StudyEnding(study_id=study_id, reason=reason, message=message))
    if plan.state.studies[study_id].ending is not None:
        _wind_down(plan, study_id)
        return
    _promote(plan, study_id)
    _withdraw(plan, study_id)


def spent_gpu_hours(state: StudyState, study_id: str, now: datetime) -> float:
    """The GPU-hours of a study until now, with those of the gangs that run."""
    study = state.studies[study_id]
    seconds = study.gpu_seconds
    for number in study.live:
        seconds += state.trials[study_id, number].running_gpu_seconds(now)
    return seconds / 3600


def room(state: StudyState, study_id: str) -> bool:
    """Whether a further job of the study may wait for GPUs.

    A trial whose result is about to come keeps its place, so that the next one knows it.
    """
    study = state.studies[study_id]
    limits = study.spec.limits
    return (
        len(study.live) + len(study.awaiting) < limits.parallel
        and len(waiting(state, study_id)) < limits.ahead
    )


def waiting(state: StudyState, study_id: str) -> list[Trial]:
    """Trials whose newest job has never had GPUs and was not asked to stop."""
    live = [state.trials[study_id, number] for number in state.studies[study_id].live]
    return [trial for trial in live if not trial.attempt and not trial.stopping]


def may_propose(state: StudyState, study_id: str) -> bool:
    """Whether the limits allow a further trial, sooner or later."""
    study = state.studies[study_id]
    limits = study.spec.limits
    if study.ending is not None or study.proposed >= limits.trials or _grid_is_done(study):
        return False
    if isinstance(study.spec.stopping, Pbt) and not study.clones:
        return not study.completed and len(study.live) < limits.parallel
    return True


def _grid_is_done(study: Study) -> bool:
    return sampler_of(study.spec) == "grid" and study.grid >= grid_points(study.spec.space)


def _end_of(state: StudyState, study_id: str, now: datetime) -> tuple[EndReason, str] | None:
    study = state.studies[study_id]
    limits = study.spec.limits
    if study.failed > limits.failed:
        return EndReason.FAILED, f"{study.failed} trials failed; limits.failed is {limits.failed}"
    if limits.deadline is not None and now >= limits.deadline:
        return EndReason.DEADLINE, f"the deadline is {limits.deadline:%Y-%m-%d %H:%M} UTC"
    if limits.gpu_hours is not None:
        spent = spent_gpu_hours(state, study_id, now)
        if spent >= limits.gpu_hours:
            return EndReason.GPU_HOURS, f"{spent:.4g} of {limits.gpu_hours:g} GPU-hours are spent"
    return None if _goes_on(state, study_id) else _all_done(study)


def _goes_on(state: StudyState, study_id: str) -> bool:
    study = state.studies[study_id]
    if study.live or may_propose(state, study_id) or study.open > study.paused:
        return True
    return bool(study.paused) and _next_promotion(state, study_id, None) is not None


def _all_done(study: Study) -> tuple[EndReason, str]:
    if _grid_is_done(study) and study.proposed < study.spec.limits.trials:
        return EndReason.EXHAUSTED, f"all {study.grid} points of the grid were tried"
    return EndReason.TRIALS, f"{study.proposed} trials have ended"


def _wind_down(plan: StudyPlan, study_id: str) -> None:
    """Stop what runs. Once the budget is spent, a trial that runs has until its next report."""
    study = plan.state.studies[study_id]
    for number in study.live:
        trial = plan.state.trials[study_id, number]
        if trial.phase is Phase.WAITING:
            withdraw(plan, study_id, number)
        elif trial.phase is Phase.RUNNING and (
            not trial.attempt or study.ending is not EndReason.GPU_HOURS
        ):
            prune(plan, study_id, number, PruneReason.ENDED)
    if study.paused:
        held = [key for key in plan.state.paused if key[0] == study_id]
        paused = [number for key in held for _, number in plan.state.paused[key]]
        for number in paused[:MOST_AT_ONCE]:
            prune(plan, study_id, number, PruneReason.RUNG)
    if not plan.state.studies[study_id].open and study.ending is not None:
        best = best_of(plan.state, study_id)
        plan.add(study_id, StudyEnded(study_id=study_id, reason=study.ending, best=best))


def best_of(state: StudyState, study_id: str) -> BestTrial | None:
    """The best trial of a study, if one has completed."""
    study = state.studies[study_id]
    trial = None if study.best is None else find_trial(state, study_id, study.best)
    if trial is None or study.best_value is None:
        return None
    return BestTrial(
        number=trial.number,
        parameters=trial.parameters,
        value=study.best_value,
        job_id=job_id(study_id, trial.number, trial.part),
    )


def _promote(plan: StudyPlan, study_id: str) -> None:
    while plan.state.studies[study_id].paused and room(plan.state, study_id):
        found = _next_promotion(plan.state, study_id, plan.now)
        if found is None:
            return
        rung, trial = found
        part = trial.part + 1
        promoted = TrialPromoted(study_id=study_id, number=trial.number, rung=rung, part=part)
        plan.add(study_id, promoted)
        request_job(plan, study_id, trial, part, source_of(study_id, trial))


def _next_promotion(
    state: StudyState, study_id: str, now: datetime | None
) -> tuple[int, Trial] | None:
    """A paused trial that is among the best of its rung, of the highest rung first.

    `now`: only one that can continue at this time.
    """
    stopping = state.studies[study_id].spec.stopping
    if not isinstance(stopping, Asha):
        return None
    rung = 0
    while (study_id, 0, rung + 1) in state.rungs:
        rung += 1
    some_wait = False
    for at in range(rung, -1, -1):
        best = rungs.promotable(state.rungs.get((study_id, 0, at), ()), stopping.factor)
        for ranked in state.paused.get((study_id, at), ()):
            if not best or ranked > best[-1]:
                break
            trial = state.trials[study_id, ranked[1]]
            if now is None or _can_continue(trial, now):
                return at, trial
            some_wait = True
    return None if some_wait else _last_of_all(state, study_id, now)


def _can_continue(trial: Trial, now: datetime) -> bool:
    """Its job has ended, and its checkpoint is committed. If none comes, it starts over."""
    if trial.live or trial.job_ended_at is None:
        return False
    waits = BEGUN if trial.saving is None else COMMITTED
    return trial.saved is not None or not lasts(trial.job_ended_at, now, waits)


def _last_of_all(
    state: StudyState, study_id: str, now: datetime | None
) -> tuple[int, Trial] | None:
    """The best paused trial of the highest rung, if the study would end without any result.

    With few trials, none is among the best 1/factor of a rung, rounded down.
    """
    study = state.studies[study_id]
    if study.completed or study.live or study.open > study.paused or may_propose(state, study_id):
        return None
    rung = max(rung for of, rung in state.paused if of == study_id)
    trial = state.trials[study_id, state.paused[study_id, rung][0][1]]
    return (rung, trial) if now is None or _can_continue(trial, now) else None


def _withdraw(plan: StudyPlan, study_id: str) -> None:
    """The trial that waits is asked for again when results came since it was proposed."""
    most = WITHDRAWN_IN_ROW * plan.state.studies[study_id].spec.limits.ahead
    for trial in waiting(plan.state, study_id):
        stale_at = trial.stale_at if trial.by in FROM_RESULTS and trial.part == 1 else None
        if stale_at is None or lasts(stale_at, plan.now, SETTLED):
            continue
        if plan.state.studies[study_id].withdrawn < most:
            withdraw(plan, study_id, trial.number)


def withdraw(plan: StudyPlan, study_id: str, number: int) -> None:
    """Take back a trial that waits."""
    if not plan.state.trials[study_id, number].stopping:
        stop(plan, study_id, number)
    plan.add(study_id, TrialWithdrawn(study_id=study_id, number=number))


def source_of(study_id: str, trial: Trial | None) -> str | None:
    """The job whose newest committed checkpoint a trial can be continued from; None: none."""
    if trial is None or trial.saved is None:
        return None
    return job_id(study_id, trial.number, trial.saved.part)


def request_job(
    plan: StudyPlan, study_id: str, trial: Trial, part: int, resume_from: str | None
) -> None:
    """Ask for the job of a trial's part, from the newest checkpoint of that job if one is named."""
    study = plan.state.studies[study_id]
    spec = job_of(study.spec, study_id, trial.number, trial.parameters, resume_from)
    requested = TrialJobRequested(
        job_id=job_id(study_id, trial.number, part),
        spec=spec,
        user=study.user or SERVICE,
        study_id=study_id,
        number=trial.number,
        part=part,
        waits_since=study.waits_since if part == 1 else None,
    )
    plan.add(study_id, requested)
