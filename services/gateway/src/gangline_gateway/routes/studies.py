"""/v1/studies: submit, list, show and stop studies, and look at their trials."""

from __future__ import annotations

from heapq import nsmallest
from typing import Annotated, Literal

from fastapi import Body, Path, Query, Response
from starlette.concurrency import run_in_threadpool

from gangline_gateway import audit, studies_state, study_views
from gangline_gateway.app_context import App, AppContext, Caller, answers, may_change, router
from gangline_gateway.problems import invalid, not_found
from gangline_gateway.routes.jobs import IdempotencyKey
from gangline_gateway.studies_state import studies_of, trials_of
from gangline_gateway.study_submit import plan, submit_study
from gangline_schemas.api.runs import Parallel
from gangline_schemas.api.studies import (
    BestSoFar,
    ParetoFront,
    StudyCurves,
    StudyDetail,
    StudyImportance,
    StudyPage,
    StudyPhase,
    StudyPlan,
    TrialDetail,
    TrialPage,
    TrialPhase,
)
from gangline_schemas.events.automation import StudyStopRequested
from gangline_schemas.events.studies import EndReason
from gangline_schemas.study_file import STUDY_ID, Objective, StudySpec
from gangline_service.tokens import Principal
from gangline_studies.core.advance import spent_gpu_hours
from gangline_studies.core.state import Phase, StudyState, find_trial
from gangline_studies.core.state import Study as StudyFacts
from gangline_studies.core.state import Trial as TrialFacts
from gangline_studies.core.values import oriented

studies = router("Studies")

EXAMPLE = {
    "name": "lr-sweep",
    "team": "nlp",
    "objective": {"metric": "eval_loss", "direction": "minimize"},
    "space": {
        "lr": {"type": "float", "low": 1e-5, "high": 1e-2, "log": True},
        "layers": {"type": "int", "low": 2, "high": 8},
    },
    "stopping": {"kind": "asha", "min_steps": 100, "max_steps": 900},
    "limits": {"trials": 40, "parallel": 4},
    "job": {"command": ["python", "train.py"], "resources": {"gpus": 1}},
}
Spec = Annotated[StudySpec, Body(openapi_examples={"asha": {"value": EXAMPLE}})]
StudyName = Annotated[str, Path(pattern=STUDY_ID, description="The study's id.")]
Cursor = Annotated[str | None, Query(max_length=20, pattern=r"^[0-9]{1,9}$")]
Order = Literal["number", "newest", "value", "gpu_hours"]
_SUBMITTED = {
    200: {"model": StudyDetail | StudyPlan, "description": "It existed, or it is a dry run."},
    **answers(409),
}


@studies.post(
    "/v1/studies",
    operation_id="submitStudy",
    summary="Submit a study",
    status_code=201,
    response_model=StudyDetail | StudyPlan,
    responses=_SUBMITTED,
)
@studies.post(
    "/hpo/studies",
    operation_id="createStudy",
    summary="Submit a study, by its other name",
    status_code=201,
    response_model=StudyDetail | StudyPlan,
    responses=_SUBMITTED,
)
async def submit(
    spec: Spec,
    response: Response,
    app: App,
    caller: Caller,
    key: IdempotencyKey = None,
    dry: Annotated[bool, Query(alias="dry_run", description="Validate only.")] = False,  # noqa: FBT002
) -> StudyDetail | StudyPlan:
    """Trials begin once the studies service has taken it."""
    if dry:
        audit.note().ignored = True
        response.status_code = 200
        return await run_in_threadpool(plan, app, caller, spec)
    study_id, created = await submit_study(app, caller, spec, key)
    response.headers["Location"] = f"/v1/studies/{study_id}"
    if not created:
        response.status_code = 200
    return _detail(app, *_found(app, caller, study_id), study_id)


@studies.get(
    "/v1/studies",
    operation_id="listStudies",
    summary="List studies",
    response_model=StudyPage,
    responses=answers(),
)
def list_studies(
    app: App,
    caller: Caller,
    state: Annotated[list[StudyPhase] | None, Query(max_length=5)] = None,
    team: Annotated[str | None, Query(max_length=63)] = None,
    name: Annotated[str | None, Query(max_length=63, description="Prefix of the name.")] = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    cursor: Cursor = None,
) -> StudyPage:
    """Those that the caller can see, the newest first; ended ones for up to 30 days."""
    known, now = studies_of(app.tail.studies()), app.clock()
    first = int(cursor or 0)
    seen = [
        (study_id, facts)
        for study_id, facts in studies_state.newest(known)
        if caller.reads(facts.spec.team)
        and team in {None, facts.spec.team}
        and facts.spec.name.startswith(name or "")
        and (not state or studies_state.phase(facts) in state)
    ]
    page = seen[first : first + limit]
    return StudyPage(
        studies=[studies_state.summary(known, study_id, facts, now) for study_id, facts in page],
        cursor=str(first + limit) if len(seen) > first + limit else None,
    )


@studies.get(
    "/v1/studies/{study_id}",
    operation_id="getStudy",
    summary="A study",
    response_model=StudyDetail,
    responses=answers(404),
)
def show_study(study_id: StudyName, app: App, caller: Caller) -> StudyDetail:
    """The study with its spec, counts of its trials, and the best one."""
    return _detail(app, *_found(app, caller, study_id), study_id)


@studies.post(
    "/v1/studies/{study_id}/stop",
    operation_id="stopStudy",
    summary="Stop a study",
    response_model=StudyDetail,
    responses=answers(404, 409),
)
async def stop_study(study_id: StudyName, app: App, caller: Caller) -> StudyDetail:
    """No further trial starts, and those that run are cancelled. Results stay."""
    state, facts = _found(app, caller, study_id)
    may_change(caller, facts.spec.team)
    if facts.ended_at is None and facts.ending is not EndReason.STOPPED:
        await app.request(study_id, StudyStopRequested(study_id=study_id, user=caller.name))
        state, facts = _found(app, caller, study_id)
    return _detail(app, state, facts, study_id)


@studies.get(
    "/v1/studies/{study_id}/trials",
    operation_id="listTrials",
    summary="The trials of a study",
    response_model=TrialPage,
    responses=answers(404),
)
def list_trials(
    study_id: StudyName,
    app: App,
    caller: Caller,
    state: Annotated[list[TrialPhase] | None, Query(max_length=10)] = None,
    order_by: Annotated[
        Order, Query(description="value: the best first; newest, gpu_hours: the most first.")
    ] = "number",
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    cursor: Cursor = None,
) -> TrialPage:
    """Withdrawn trials, which never had GPUs, are left out."""
    known, facts = _found(app, caller, study_id)
    found = [each for each in trials_of(known, study_id) if not state or each.phase.value in state]
    first, now = int(cursor or 0), app.clock()
    page = nsmallest(first + limit, found, key=lambda each: _key(facts, each, order_by))[first:]
    return TrialPage(
        trials=[studies_state.trial(study_id, facts, each, now) for each in page],
        cursor=str(first + limit) if len(found) > first + limit else None,
    )


@studies.get(
    "/v1/studies/{study_id}/trials/{number}",
    operation_id="getTrial",
    summary="A trial",
    response_model=TrialDetail,
    responses=answers(404),
)
def show_trial(
    study_id: StudyName,
    number: Annotated[int, Path(ge=0, lt=2**31)],
    app: App,
    caller: Caller,
) -> TrialDetail:
    """The trial with the curve of the first objective."""
    known, facts = _found(app, caller, study_id)
    found = find_trial(known, study_id, number)
    if found is None or found.phase is Phase.WITHDRAWN:
        raise not_found("trial")
    fields = studies_state.trial_fields(study_id, facts, found, app.clock())
    return TrialDetail(**fields, curve=study_views.curve(found))


@studies.get(
    "/v1/studies/{study_id}/curves",
    operation_id="getStudyCurves",
    summary="The curves of trials, with the rungs",
    response_model=StudyCurves,
    responses=answers(404),
)
def show_curves(
    study_id: StudyName,
    app: App,
    caller: Caller,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> StudyCurves:
    """Of the live trials, then the best, then the newest; at most `limit`."""
    known, facts = _found(app, caller, study_id)
    return study_views.curves(facts, trials_of(known, study_id), limit)


@studies.get(
    "/v1/studies/{study_id}/parallel",
    operation_id="getStudyParallel",
    summary="Trials on parallel axes",
    response_model=Parallel,
    responses=answers(404),
)
def show_parallel(
    study_id: StudyName,
    app: App,
    caller: Caller,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 1000,
) -> Parallel:
    """Parameters, GPU-hours and objectives of the best trials; those without a value come last."""
    known, facts = _found(app, caller, study_id)
    found = trials_of(known, study_id)
    best = nsmallest(limit, found, key=lambda each: _key(facts, each, "value"))
    return study_views.parallel(study_id, facts, best)


@studies.get(
    "/v1/studies/{study_id}/importance",
    operation_id="getStudyImportance",
    summary="Which parameters matter",
    response_model=StudyImportance,
    responses=answers(404),
)
def show_importance(
    study_id: StudyName,
    app: App,
    caller: Caller,
    metric: Annotated[
        str | None, Query(max_length=256, description="An objective; by default the first.")
    ] = None,
) -> StudyImportance:
    """PED-ANOVA over the completed trials."""
    known, facts = _found(app, caller, study_id)
    return study_views.importance(facts, trials_of(known, study_id), _objective(facts, metric))


@studies.get(
    "/v1/studies/{study_id}/best-so-far",
    operation_id="getBestSoFar",
    summary="The best value over GPU-hours",
    response_model=BestSoFar,
    responses=answers(404),
)
def show_best_so_far(study_id: StudyName, app: App, caller: Caller) -> BestSoFar:
    """Each trial that was better than all before, with the GPU-hours of all that had ended."""
    known, facts = _found(app, caller, study_id)
    spent = spent_gpu_hours(known, study_id, app.clock())
    return study_views.best_so_far(facts, trials_of(known, study_id), spent)


@studies.get(
    "/v1/studies/{study_id}/pareto",
    operation_id="getParetoFront",
    summary="The Pareto front",
    response_model=ParetoFront,
    responses=answers(404),
)
def show_pareto(study_id: StudyName, app: App, caller: Caller) -> ParetoFront:
    """The completed trials that no other beats in all objectives. With one: the best."""
    known, facts = _found(app, caller, study_id)
    return study_views.pareto(study_id, facts, trials_of(known, study_id), app.clock())


def _found(app: AppContext, caller: Principal, study_id: str) -> tuple[StudyState, StudyFacts]:
    known = studies_of(app.tail.studies())
    facts = known.studies.get(study_id)
    if facts is None or not caller.reads(facts.spec.team):
        raise not_found("study")
    return known, facts


def _detail(app: AppContext, known: StudyState, facts: StudyFacts, study_id: str) -> StudyDetail:
    return studies_state.detail(known, study_id, facts, app.clock())


def _objective(facts: StudyFacts, metric: str | None) -> Objective:
    if metric is None:
        return facts.spec.objective[0]
    for each in facts.spec.objective:
        if each.metric == metric:
            return each
    raise invalid("metric", "is no objective of this study")


def _key(facts: StudyFacts, found: TrialFacts, order: Order) -> tuple[float, float]:
    if order == "newest":
        return -found.number, 0
    if order == "gpu_hours":
        return -found.gpu_seconds, found.number
    if order == "value":
        value = studies_state.value_of(facts, found)
        known = oriented(facts.spec.objective[0], value) if value is not None else float("inf")
        return known, found.number
    return found.number, 0
