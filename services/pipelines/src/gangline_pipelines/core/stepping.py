"""The steps of a run: keys, hits of the cache, jobs, and ends.

A step whose needs have ended gets its key. If the cache has outputs for it, they are checked, and
the steps that it feeds get their keys at once, on trust: so one check decides a whole run that has
not changed. A step with `when` waits for the check, as a skip is an end. Else its job is requested.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping

from pydantic import ValidationError

from gangline_pipelines.core import aliases, hits
from gangline_pipelines.core.graph import Graph, Instance, is_resumed
from gangline_pipelines.core.jobs import (
    checkpoint_of,
    inputs_of,
    job_of,
    job_problem,
    params_of,
    study_of,
)
from gangline_pipelines.core.model import Run, RunState, StepRun, StepState
from gangline_pipelines.core.naming import (
    cache_key,
    digest,
    job_id,
    key_parts,
    pipeline_key,
    study_id,
)
from gangline_pipelines.core.state import PipelinePlan, graph_of_run, spec_of, step_key, steps_of
from gangline_schemas.events.pipelines import (
    RunEnded,
    RunStopping,
    StepEnded,
    StepJobRequested,
    StepJobStopRequested,
    StepKeyed,
    StepResult,
    StepStudyRequested,
    StepStudyStopRequested,
)
from gangline_schemas.models import AliasedVersion
from gangline_schemas.pipeline_checks import BEST_VALUE
from gangline_schemas.pipeline_when import clauses, failing
from gangline_schemas.placeholders import UnknownPlaceholder
from gangline_schemas.study_file import StudySpec

USER = "pipeline"
"""The user of a step's job, if a trigger started the run."""
_BAD = {StepState.FAILED, StepState.BLOCKED, StepState.CANCELLED}


def advance(plan: PipelinePlan, run_id: str, names: Iterable[str] | None = None) -> None:
    """Decide all that can be decided about these steps, and what follows; None: about all."""
    run = plan.state.runs[run_id]
    if run.state.ended:
        return
    graph = graph_of_run(plan.state, run)
    if run.state is RunState.RUNNING:
        check = run.asked + 1
        work = deque(graph.instances if names is None else names)
        waiting, decided = set[int](), len(plan.decisions)
        known: dict[int, frozenset[StepState]] = {}  # items of one step share their needs
        while work:
            instance = graph.instances[work.popleft()]
            if len(plan.decisions) != decided:
                waiting.clear()
                decided = len(plan.decisions)
            needs = id(instance.needs)
            if needs in waiting:
                continue
            if needs not in known:
                states = _states(plan, run_id, instance)
                if states is None:
                    waiting.add(needs)
                    continue
                known[needs] = states
            if _decide(plan, run, graph, instance, known[needs], check):
                work.extend(graph.feeds.get(instance.name, ()))
        _start_ready(plan, run_id)
    _end_if_over(plan, run_id)


def end_step(
    plan: PipelinePlan, run_id: str, name: str, result: StepResult, reason: str = ""
) -> None:
    """End a step, with all that follows from it."""
    step = plan.state.steps[step_key(run_id, name)]
    outputs = step.outputs if result == "succeeded" else {}
    ended = StepEnded(run_id=run_id, step=name, result=result, reason=reason, outputs=outputs)
    plan.add(run_id, ended)
    run = plan.state.runs[run_id]
    stops = spec_of(plan.state, run).siblings == "cancel"
    if result == "failed" and stops and run.state is RunState.RUNNING:
        stop(plan, run_id, "failed", f"step {name} failed: {reason}")
        return
    advance(plan, run_id, graph_of_run(plan.state, run).feeds.get(name, ()))


def stop(
    plan: PipelinePlan,
    run_id: str,
    result: str,
    reason: str,
    user: str = "",
    ref: Mapping[str, str] | None = None,
) -> None:
    """End a run early: its jobs are asked to stop, its other steps are cancelled."""
    values = {"run_id": run_id, "result": result, "reason": reason, "user": user, **(ref or {})}
    plan.add(run_id, RunStopping.model_validate(values))
    for name, step in [*steps_of(plan.state, plan.state.runs[run_id])]:
        if step.state is StepState.RUNNING:
            if not step.stopping and step.job_ended is None:
                _ask_to_stop(plan, run_id, name, user or USER)
        elif not step.state.ended:
            why = "the run ends early"
            plan.add(run_id, StepEnded(run_id=run_id, step=name, result="cancelled", reason=why))
    _end_if_over(plan, run_id)


def _ask_to_stop(plan: PipelinePlan, run_id: str, name: str, user: str) -> None:
    """Ask a step's job or study to end."""
    own = plan.state.steps[step_key(run_id, name)].job_id
    of = {"run_id": run_id, "step": name, "user": user}
    instance = graph_of_run(plan.state, plan.state.runs[run_id]).instances[name]
    if instance.spec.study is not None:
        plan.add(own, StepStudyStopRequested(study_id=own, **of))
    else:
        plan.add(own, StepJobStopRequested(job_id=own, **of))


def request_if_room(plan: PipelinePlan, run_id: str, name: str) -> bool:
    """Request the job of a step if the limits of its run let it; whether it was requested."""
    run = plan.state.runs[run_id]
    limits = spec_of(plan.state, run).limits
    sweep = plan.state.sweeps.get(run.team)
    if run.state is not RunState.RUNNING or run.live >= limits.parallel:
        return False
    if sweep is not None and sweep.open:
        return False
    if run.jobs >= limits.jobs:
        stop(plan, run_id, "failed", f"the run has had {run.jobs} jobs, its limits.jobs")
        return False
    _request_job(plan, run_id, name)
    return True


def _request_job(plan: PipelinePlan, run_id: str, name: str) -> None:
    """Ask for the job or study of a step, whose inputs are all there."""
    run = plan.state.runs[run_id]
    step = plan.state.steps[step_key(run_id, name)]
    instance = graph_of_run(plan.state, run).instances[name]
    tries = step.tries + 1
    if instance.spec.study is not None:
        study = StepStudyRequested(
            study_id=study_id(run_id, name, tries),
            spec=study_of(plan, run, instance, instance.spec.study),
            user=run.user or USER,
            run_id=run_id,
            step=name,
            tries=tries,
        )
        plan.add(study.study_id, study)
        return
    requested = StepJobRequested(
        job_id=job_id(run_id, name, tries),
        spec=job_of(plan, run, instance, step.starts_from),
        user=run.user or USER,
        run_id=run_id,
        step=name,
        tries=tries,
        start=checkpoint_of(step.starts_from),
    )
    plan.add(requested.job_id, requested)


def _states(plan: PipelinePlan, run_id: str, instance: Instance) -> frozenset[StepState] | None:
    """The states of the steps that a step needs.

    None: one of them has neither ended nor outputs that are being checked. Otherwise they stay as
    they are while `advance` runs, which decides about pending steps alone. Those that may be
    skipped, and were, do not count.
    """
    steps, found = plan.state.steps, set[StepState]()
    for need in instance.needs:
        state = steps[step_key(run_id, need)].state
        if not (state.ended or state is StepState.CHECKING):
            return None
        if state is not StepState.SKIPPED or need not in instance.optional:
            found.add(state)
    return frozenset(found)


def _decide(
    plan: PipelinePlan,
    run: Run,
    graph: Graph,
    instance: Instance,
    states: frozenset[StepState],
    check: int,
) -> bool:
    """Decide about one step that waits for none; whether those that it feeds may continue.

    `states`: of the steps that it needs.
    """
    state, name = plan.state, instance.name
    step = state.steps[step_key(run.run_id, name)]
    if step.state is not StepState.PENDING:
        return False
    if states & _BAD:
        return _end(plan, run, name, "blocked", "a step that it needs did not succeed")
    if StepState.SKIPPED in states:
        return _end(plan, run, name, "skipped", "a step that it needs was skipped")
    trusting = StepState.CHECKING in states
    if instance.spec.when is not None:
        if trusting:
            return False
        problem = _when(plan, run, graph, instance)
        if problem is not None:
            return _end(plan, run, name, "skipped", problem)
    return _bind(plan, run, instance, step, check, trusting=trusting)


def _bind(
    plan: PipelinePlan, run: Run, instance: Instance, step: StepRun, check: int, *, trusting: bool
) -> bool:
    """Key a step, with the version that its alias points to at this moment."""
    alias = instance.spec.resumed_alias
    if alias is None:
        return _key(plan, run, instance, step, check, None, trusting=trusting)
    start, problem = aliases.find(plan.state, run.team, alias)
    if start is not None:
        return _key(plan, run, instance, step, check, start, trusting=trusting)
    if trusting:
        return False
    if problem:
        end_step(plan, run.run_id, instance.name, "failed", f"resume: {problem}")
        return False
    return _end(plan, run, instance.name, "skipped", f"resume: no version has {alias} yet")


def _key(
    plan: PipelinePlan,
    run: Run,
    instance: Instance,
    step: StepRun,
    check: int,
    start: AliasedVersion | None,
    *,
    trusting: bool,
) -> bool:
    if instance.spec.study is not None:
        if not trusting:
            _key_study(plan, run, instance, instance.spec.study)
        return False
    try:
        job = job_of(plan, run, instance, start)
    except (UnknownPlaceholder, ValidationError) as error:
        if trusting:
            return False
        end_step(plan, run.run_id, instance.name, "failed", job_problem(error))
        return False
    parts = key_parts(job, job.artifacts.inputs if job.artifacts else {}, start)
    key = cache_key(parts)
    place = f"{pipeline_key(run.team, run.pipeline)}/{instance.name}"
    last, kept = plan.state.last.get(place), plan.state.kept.get(f"{run.team}/{key}")
    kept, why = hits.find(instance, step, last, kept, parts)
    resumed = is_resumed(graph_of_run(plan.state, run), instance.name)
    if kept is not None and resumed and (problem := hits.not_resumable(kept, plan.now)):
        kept, why = None, problem
    if kept is None and trusting:
        return False
    keyed = StepKeyed(
        run_id=run.run_id,
        step=instance.name,
        key=key,
        parts=parts,
        reason=why,
        hit=kept.run_id if kept is not None else None,
        hit_job=kept.job_id if kept is not None else None,
        outputs=kept.outputs if kept is not None else {},
        hit_save=kept.saved_key if kept is not None and resumed else None,
        check=check if kept is not None else 0,
        starts_from=start,
    )
    plan.add(run.run_id, keyed)
    return kept is not None


def _key_study(plan: PipelinePlan, run: Run, instance: Instance, study: StudySpec) -> None:
    """The key of a study, for people: it is never a hit."""
    parts = {"study": digest(study.model_dump(mode="json"))}
    parts |= {f"in.{name}": one for name, one in inputs_of(plan, run, instance).items()}
    keyed = StepKeyed(
        run_id=run.run_id,
        step=instance.name,
        key=cache_key(parts),
        parts=parts,
        reason="a study runs each time",
    )
    plan.add(run.run_id, keyed)


def _end(plan: PipelinePlan, run: Run, name: str, result: StepResult, reason: str) -> bool:
    plan.add(run.run_id, StepEnded(run_id=run.run_id, step=name, result=result, reason=reason))
    return True


def _when(plan: PipelinePlan, run: Run, graph: Graph, instance: Instance) -> str | None:
    text = instance.spec.when or ""
    scores: dict[str, list[float]] = {}
    for clause in clauses(text):
        if clause.step is None:
            continue
        for name in graph.of_step[clause.step]:
            found = plan.state.steps[step_key(run.run_id, name)].outputs.get(clause.name)
            best = plan.state.steps[step_key(run.run_id, name)].best
            if best is not None and clause.name == BEST_VALUE:
                scores.setdefault(f"{clause.step}.{clause.name}", []).append(best.value)
            elif found is not None and found.value is not None:
                scores.setdefault(f"{clause.step}.{clause.name}", []).append(found.value)
    return failing(text, params_of(plan, run), scores)


def _start_ready(plan: PipelinePlan, run_id: str) -> None:
    """Request jobs of steps that are ready, as far as the limits of the run let it."""
    for name in plan.state.runs[run_id].ready:
        if not request_if_room(plan, run_id, name):
            return


def _end_if_over(plan: PipelinePlan, run_id: str) -> None:
    run = plan.state.runs[run_id]
    if run.left or run.state.ended:
        return
    held = plan.state.pipelines.get(pipeline_key(run.team, run.pipeline))
    failed = [name for name, step in steps_of(plan.state, run) if step.state is StepState.FAILED]
    result = run.result or ("failed" if failed else "succeeded")
    reason = run.reason
    if not reason and failed:
        first = plan.state.steps[step_key(run_id, failed[0])]
        reason = f"step {failed[0]} failed: {first.reason}"
    in_row = held.failures if held is not None else 0
    if run.cause.kind != "manual" and result != "cancelled":
        in_row = in_row + 1 if result == "failed" else 0
    values = {"run_id": run_id, "result": result, "reason": reason, "failed_in_row": in_row}
    plan.add(run_id, RunEnded.model_validate(values))
