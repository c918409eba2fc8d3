"""Reports of trials: a trial continues, stops or pauses at a rung.

Steps of a trial rise: a job that restarts from a checkpoint repeats steps, and the first value of
each counts. A value that is not finite ends the trial there. The job of a paused trial may report
more before it ends, or even end well: these values count too, and the trial stays paused.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from gangline_schemas.events.studies import (
    PruneReason,
    TrialJobStopRequested,
    TrialMeasured,
    TrialPaused,
    TrialPruned,
)
from gangline_schemas.events.trials import TrialEvaluated, TrialLogged
from gangline_schemas.study_file import Asha, Hyperband, Median, Pbt
from gangline_studies.core.policy import median, population, rungs
from gangline_studies.core.state import (
    JobOf,
    Phase,
    Ranked,
    Study,
    StudyPlan,
    StudyState,
    Trial,
    job_id,
)
from gangline_studies.core.values import are_finite, oriented

SERVICE = "studies"
"""The user of requests that the service makes."""
NEED_MEMBERS = 4
"""Fewer members of a population are not compared."""
MOST_RUNGS = 2**31


def take(plan: StudyPlan, job: JobOf, trial: Trial, event: TrialEvaluated) -> None:
    """Measure a trial that runs, and decide what becomes of it."""
    if trial.phase.terminal or event.attempt < trial.attempt:
        return
    if trial.curve and event.step <= trial.step:
        return
    study = plan.state.studies[job.study_id]
    reported = {name: event.values[name] for name in study.spec.metrics if name in event.values}
    if not reported:
        return
    values = {**trial.values, **reported}
    reached, passes = _rungs(plan.state, study, job, trial, event.step, reported)
    measured = TrialMeasured(
        study_id=job.study_id,
        number=job.number,
        part=job.part,
        step=event.step,
        values=values,
        rungs=reached,
        logged=isinstance(event, TrialLogged),
    )
    plan.add(job.study_id, measured)
    if not are_finite(study.spec, values):
        prune(plan, job.study_id, job.number, PruneReason.NOT_FINITE)
    elif study.ending is not None:
        prune(plan, job.study_id, job.number, PruneReason.ENDED)
    elif not passes and trial.phase is not Phase.PAUSED:
        _leave_rung(plan, study, job, event.step, reached)


def _rungs(
    state: StudyState,
    study: Study,
    job: JobOf,
    trial: Trial,
    step: int,
    reported: dict[str, float | None],
) -> tuple[tuple[int, ...], bool]:
    """The rungs that a report reaches, and whether the trial continues."""
    objective = study.spec.objective[0]
    value = reported.get(objective.metric)
    if value is None:
        return (), True
    ranked = (oriented(objective, value), job.number)

    def held(rung: int) -> Sequence[Ranked]:
        return state.rungs.get((job.study_id, trial.bracket, rung), ())

    match study.spec.stopping:
        case Asha() | Hyperband() as stopping:
            paused = trial.phase is Phase.PAUSED
            return rungs.climb(
                stopping, held, trial.bracket, trial.rung, step, ranked, through=paused
            )
        case Median() as stopping:
            return (), not _below_median(state, study, job, trial, stopping, step, value)
        case Pbt() as stopping:
            rung = min(step // stopping.interval_steps, MOST_RUNGS) - 1
            if rung < trial.rung:
                return (), True
            others = [*held(rung), ranked]
            _best, worst = population.quantiles(sorted(others), stopping.quantile)
            return (rung,), len(others) < NEED_MEMBERS or job.number not in worst
        case _:
            return (), True


def _below_median(
    state: StudyState,
    study: Study,
    job: JobOf,
    trial: Trial,
    stopping: Median,
    step: int,
    value: float,
) -> bool:
    if step <= stopping.warmup_steps or study.completed < stopping.startup_trials:
        return False
    newest = reversed(state.over[job.study_id])
    completed = (each.curve for each in newest if each.phase is Phase.COMPLETED)
    curves = islice(completed, median.COMPARED)
    sign = 1 if study.spec.objective[0].direction == "minimize" else -1
    own = [*trial.curve, (step, value)]
    return median.is_below_median(own, curves, step, sign, stopping.startup_trials)


def _leave_rung(
    plan: StudyPlan, study: Study, job: JobOf, step: int, reached: tuple[int, ...]
) -> None:
    match study.spec.stopping:
        case Asha(mode="promote"):
            paused = TrialPaused(
                study_id=job.study_id, number=job.number, step=step, rung=reached[-1]
            )
            plan.add(job.study_id, paused)
            stop(plan, job.study_id, job.number)
        case Pbt() as stopping:
            if study.proposed + len(study.clones) >= study.spec.limits.trials:
                return
            better = _better(plan.state, job, stopping, reached[-1])
            if better is not None:
                prune(plan, job.study_id, job.number, PruneReason.REPLACED, better)
        case Median():
            prune(plan, job.study_id, job.number, PruneReason.MEDIAN)
        case _:
            prune(plan, job.study_id, job.number, PruneReason.RUNG)


def _better(state: StudyState, job: JobOf, stopping: Pbt, rung: int) -> int | None:
    """A member among the best that has a committed checkpoint; which one the number decides."""
    held = state.rungs.get((job.study_id, 0, rung), ())
    best, _worst = population.quantiles(held, stopping.quantile)
    able = [
        number
        for number in best
        if (member := state.trials.get((job.study_id, number))) is not None
        and member.saved is not None
    ]
    return able[job.number % len(able)] if able else None


def prune(
    plan: StudyPlan, study_id: str, number: int, why: PruneReason, better: int | None = None
) -> None:
    """End a trial with its last values; its job is stopped."""
    trial = plan.state.trials[study_id, number]
    if trial.live and not trial.stopping:
        stop(plan, study_id, number)
    pruned = TrialPruned(
        study_id=study_id,
        number=number,
        step=trial.step,
        reason=why,
        values=trial.values,
        better=better,
    )
    plan.add(study_id, pruned)


def stop(plan: StudyPlan, study_id: str, number: int) -> None:
    """Ask for the end of a trial's job; it saves a checkpoint before it ends."""
    trial = plan.state.trials[study_id, number]
    name = job_id(study_id, number, trial.part)
    asked = TrialJobStopRequested(job_id=name, user=SERVICE, study_id=study_id, number=number)
    plan.add(study_id, asked)
