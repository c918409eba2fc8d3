"""/v1/pipelines and /v1/pipeline-runs: pipelines, their runs, and why a step ran."""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import Annotated
from uuid import uuid4

from fastapi import Body, Path, Query, Response

from gangline_gateway import audit, pipelines_state
from gangline_gateway.answered import answered
from gangline_gateway.app_context import App, AppContext, Caller, answers, may_change, router
from gangline_gateway.pipelines_state import pipelines_of
from gangline_gateway.problems import ProblemError, conflict, invalid, not_found, unavailable
from gangline_gateway.publish import SOURCE
from gangline_gateway.routes.jobs import IdempotencyKey
from gangline_pipelines.core.checks import problems
from gangline_pipelines.core.model import Pipeline as PipelineFacts
from gangline_pipelines.core.model import Run
from gangline_pipelines.core.naming import digest, pipeline_key, run_id
from gangline_pipelines.core.requests import MANUAL
from gangline_pipelines.core.state import PipelineState, spec_key
from gangline_schemas.api.pipelines import (
    Announced,
    PauseBody,
    PipelineDetails,
    PipelineList,
    PipelineRun,
    RunBody,
    RunDetails,
    RunList,
    SnapshotBody,
    StepWhy,
)
from gangline_schemas.base import Event
from gangline_schemas.envelope import derived_id, request_key
from gangline_schemas.events.pipeline_requests import (
    PipelineConfigureRequested,
    PipelinePauseRequested,
    PipelineRemoveRequested,
    RunCancelRequested,
    RunRequested,
    RunRetryRequested,
    SnapshotAnnounced,
)
from gangline_schemas.pipeline_file import PipelineSpec
from gangline_service.tokens import Principal

pipelines = router("Pipelines")
ID = r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"
_EXAMPLE = {
    "name": "nightly",
    "team": "nlp",
    "steps": {
        "prepare": {"job": {"run": "make data", "resources": {"gpus": 1}}, "out": ["tokens"]},
        "train": {
            "job": {"command": ["python", "train.py"], "resources": {"gpus": 4}},
            "in": {"data": "prepare.tokens"},
            "out": ["model"],
        },
    },
    "triggers": {"nightly": {"schedule": "0 3 * * *", "zone": "Europe/Berlin"}},
}
Name = Annotated[str, Path(pattern=ID, description="The pipeline's name.")]
RunName = Annotated[str, Path(alias="run_id", pattern=ID, description="The run's id.")]
Team = Annotated[
    str | None,
    Query(pattern=ID, description="Needed if several of the caller's teams have one so named."),
]
Spec = Annotated[PipelineSpec, Body(openapi_examples={"pipeline": {"value": _EXAMPLE}})]
Limit = Annotated[int, Query(ge=1, le=1000)]


@pipelines.put(
    "/v1/pipelines/{name}",
    operation_id="applyPipeline",
    summary="Create or replace a pipeline",
    response_model=PipelineDetails,
    responses=answers(409),
)
async def apply_pipeline(
    name: Name,
    spec: Spec,
    app: App,
    caller: Caller,
    *,
    dry_run: Annotated[bool, Query(description="Check it only.")] = False,
) -> PipelineDetails:
    """Runs that began keep the earlier file. 422 names the fields that are wrong."""
    may_change(caller, spec.team)
    if spec.name != name:
        raise invalid("name", f"is {spec.name} in the body and {name} in the path")
    wrong = await asyncio.to_thread(problems, spec)
    if wrong:
        text = "; ".join(f"{one.field}: {one.message}" for one in wrong[:3])
        raise ProblemError(422, "invalid", text, errors=wrong)
    if dry_run:
        audit.note().ignored = True
        now = app.clock()
        facts = PipelineFacts(spec.team, spec.name, 1, caller.name, now)
        return pipelines_state.pipeline(
            PipelineState(specs={spec_key(spec.team, spec.name, facts.revision): spec}), facts, now
        )
    event = PipelineConfigureRequested(spec=spec, user=caller.name)
    _, state = await _answered(app, name, event)
    return _details(app, state, spec.team, name)


@pipelines.get(
    "/v1/pipelines",
    operation_id="listPipelines",
    summary="List pipelines",
    response_model=PipelineList,
    responses=answers(),
)
def list_pipelines(app: App, caller: Caller) -> PipelineList:
    """Those of the caller's teams, by team and name."""
    state = pipelines_of(app.tail.pipelines())
    return PipelineList(pipelines=pipelines_state.pipelines(state, caller.reads, app.clock()))


@pipelines.get(
    "/v1/pipelines/{name}",
    operation_id="getPipeline",
    summary="Show a pipeline",
    response_model=PipelineDetails,
    responses=answers(404),
)
def get_pipeline(name: Name, app: App, caller: Caller, team: Team = None) -> PipelineDetails:
    """With its file, as it was applied last."""
    state, held = _held(app, caller, name, team)
    return _details(app, state, held.team, name)


@pipelines.delete(
    "/v1/pipelines/{name}",
    operation_id="removePipeline",
    summary="Remove a pipeline",
    response_model=PipelineDetails,
    responses=answers(404, 409),
)
async def remove_pipeline(
    name: Name, app: App, caller: Caller, team: Team = None
) -> PipelineDetails:
    """Its runs continue; those that are queued do not start."""
    state, held = _held(app, caller, name, team)
    may_change(caller, held.team)
    shown = _details(app, state, held.team, name)
    event = PipelineRemoveRequested(team=held.team, pipeline=name, user=caller.name)
    await _answered(app, name, event)
    return shown


@pipelines.post(
    "/v1/pipelines/{name}/pause",
    operation_id="pausePipeline",
    summary="Pause a pipeline's triggers, or resume them",
    response_model=PipelineDetails,
    responses=answers(404, 409),
)
async def pause_pipeline(
    name: Name, body: PauseBody, app: App, caller: Caller, team: Team = None
) -> PipelineDetails:
    """While it is paused it runs on request only. Times that pass meanwhile start nothing."""
    _, held = _held(app, caller, name, team)
    may_change(caller, held.team)
    event = PipelinePauseRequested(
        team=held.team, pipeline=name, paused=body.paused, user=caller.name
    )
    _, state = await _answered(app, name, event)
    return _details(app, state, held.team, name)


@pipelines.post(
    "/v1/pipelines/{name}/runs",
    operation_id="runPipeline",
    summary="Run a pipeline",
    status_code=201,
    response_model=PipelineRun,
    responses={200: {"model": PipelineRun, "description": "The run existed."}, **answers(404, 409)},
)
async def run_pipeline(
    name: Name,
    body: RunBody,
    response: Response,
    app: App,
    caller: Caller,
    team: Team = None,
    key: IdempotencyKey = None,
) -> PipelineRun:
    """Begins now, or is queued behind the run that has not ended."""
    _, held = _held(app, caller, name, team)
    may_change(caller, held.team)
    given = uuid4().hex if key is None else key
    request = derived_id("pipeline-run", held.team, name, given)
    begun = run_id(held.team, name, MANUAL, request_key(SOURCE, request))
    event = RunRequested(team=held.team, pipeline=name, params=body.params, user=caller.name)
    async with app.submitting.hold(begun):
        run = pipelines_state.one_run(pipelines_of(app.tail.pipelines()), begun)
        if run is not None:
            response.status_code = 200
            return _same(run, event)
        _, state = await _answered(app, name, event, request)
    run = pipelines_state.one_run(state, begun)
    if run is None:
        raise conflict("refused", "another run has taken its place already")
    return _same(run, event)


def _same(run: PipelineRun, event: RunRequested) -> PipelineRun:
    """The run, if it is the one of this request. Raises a 409 problem."""
    if digest(run.params) != digest(event.params):  # 1, 1.0 and true are equal
        raise conflict(
            "key-reused",
            "this Idempotency-Key was used for a run with other params; use a new key",
        )
    return run


@pipelines.get(
    "/v1/pipelines/{name}/runs",
    operation_id="listRunsOfPipeline",
    summary="List the runs of a pipeline",
    response_model=RunList,
    responses=answers(),
)
def list_runs_of(
    name: Name, app: App, caller: Caller, team: Team = None, limit: Limit = 50
) -> RunList:
    """Those that are queued first, then the newest. Runs are forgotten after 30 days."""
    state = pipelines_of(app.tail.pipelines())
    sees = caller.reads if team is None else lambda other: other == team and caller.reads(other)
    return RunList(runs=[*islice(pipelines_state.runs(state, sees, name), limit)])


@pipelines.get(
    "/v1/pipeline-runs",
    operation_id="listPipelineRuns",
    summary="List the runs of all pipelines",
    response_model=RunList,
    responses=answers(),
)
def list_runs(app: App, caller: Caller, limit: Limit = 50) -> RunList:
    """Those that are queued first, then the newest."""
    state = pipelines_of(app.tail.pipelines())
    return RunList(runs=[*islice(pipelines_state.runs(state, caller.reads), limit)])


@pipelines.get(
    "/v1/pipeline-runs/{run_id}",
    operation_id="getPipelineRun",
    summary="Show a run",
    response_model=RunDetails,
    responses=answers(404),
)
def get_run(name: RunName, app: App, caller: Caller) -> RunDetails:
    """With each of its steps; one that is queued has none yet."""
    queued = pipelines_of(app.tail.pipelines()).queued.get(name)
    if queued is not None and caller.reads(queued.team):
        return pipelines_state.queued_details(name, queued)
    state, run = _run(app, caller, name)
    return pipelines_state.run_details(state, run)


@pipelines.get(
    "/v1/pipeline-runs/{run_id}/steps/{step}",
    operation_id="whyStep",
    summary="Show why a step ran, or did not",
    response_model=StepWhy,
    responses=answers(404),
)
def why_step(
    name: RunName, step: Annotated[str, Path(pattern=ID)], app: App, caller: Caller
) -> StepWhy:
    """Its key, the digests that make it, and what changed since the last run."""
    state, run = _run(app, caller, name)
    found = pipelines_state.step_why(state, run, step)
    if found is None:
        raise not_found("step")
    return found


@pipelines.post(
    "/v1/pipeline-runs/{run_id}/cancel",
    operation_id="cancelPipelineRun",
    summary="Cancel a run",
    response_model=RunDetails,
    responses=answers(404, 409),
)
async def cancel_run(name: RunName, app: App, caller: Caller) -> RunDetails:
    """Its jobs are asked to stop; its other steps do not start. One that is queued never begins."""
    queued = pipelines_of(app.tail.pipelines()).queued.get(name)
    if queued is not None and caller.reads(queued.team):
        may_change(caller, queued.team)
        event = RunCancelRequested(team=queued.team, run_id=name, user=caller.name)
        _, state = await _answered(app, queued.pipeline, event)
        if name not in state.runs:  # else it has begun meanwhile
            shown = pipelines_state.queued_details(name, queued)
            ended = {"state": "cancelled", "reason": f"cancelled by {caller.name}"}
            return shown.model_copy(update=ended)
        return pipelines_state.run_details(state, state.runs[name])
    return await _changed(app, caller, name, RunCancelRequested)


@pipelines.post(
    "/v1/pipeline-runs/{run_id}/retry",
    operation_id="retryPipelineRun",
    summary="Continue a run that failed",
    response_model=RunDetails,
    responses=answers(404, 409),
)
async def retry_run(name: RunName, app: App, caller: Caller) -> RunDetails:
    """From its failed steps; those that succeeded keep their outputs."""
    return await _changed(app, caller, name, RunRetryRequested)


@pipelines.post(
    "/v1/data/snapshots",
    operation_id="announceSnapshot",
    summary="Announce a new snapshot of data",
    status_code=201,
    response_model=Announced,
    responses=answers(),
)
async def announce_snapshot(body: SnapshotBody, app: App, caller: Caller) -> Announced:
    """Starts the runs of pipelines that wait for it. The same snapshot again starts nothing."""
    may_change(caller, body.team)
    event = SnapshotAnnounced(
        team=body.team,
        snapshot=body.snapshot,
        place=body.place,
        sources=body.sources,
        user=caller.name,
    )
    waiting = _waiting(pipelines_of(app.tail.pipelines()), body)
    await app.publisher.publish(body.team, event)

    def begun(_: object) -> list[str] | None:
        state = pipelines_of(app.tail.pipelines())
        if any(one not in state.causes for one in waiting):
            return None
        return [one for one in waiting if one in state.runs or one in state.queued]

    runs = await app.tail.until(begun, app.answer_wait_s)
    if runs is None:
        raise unavailable("undecided", "the service pipelines has not answered yet; look again")
    return Announced(snapshot=body.snapshot, runs=runs)


def _waiting(state: PipelineState, body: SnapshotBody) -> list[str]:
    """The runs that a snapshot leads to and that its news did not lead to before."""
    found = pipelines_state.led_to(state, body.team, body.snapshot)
    return [one for one in found if one not in state.causes]


def _details(app: AppContext, state: PipelineState, team: str, name: str) -> PipelineDetails:
    held = state.pipelines.get(pipeline_key(team, name))
    if held is None:
        raise not_found("pipeline")
    return pipelines_state.pipeline(state, held, app.clock())


def _held(
    app: AppContext, caller: Principal, name: str, team: str | None
) -> tuple[PipelineState, PipelineFacts]:
    """The one pipeline of this name that the caller sees. Raises a 404 or 422 problem."""
    state = pipelines_of(app.tail.pipelines())
    if team is not None:
        held = state.pipelines.get(pipeline_key(team, name))
        found = [held] if held is not None else []
    else:
        found = [held for held in state.pipelines.values() if held.name == name]
    found = [held for held in found if caller.reads(held.team)]
    if not found:
        raise not_found("pipeline")
    if len(found) > 1:
        teams = ", ".join(sorted(held.team for held in found))
        raise invalid("team", f"is needed: {teams} have a pipeline {name}")
    return state, found[0]


def _run(app: AppContext, caller: Principal, name: str) -> tuple[PipelineState, Run]:
    state = pipelines_of(app.tail.pipelines())
    run = state.runs.get(name)
    if run is None or not caller.reads(run.team):
        raise not_found("run")
    return state, run


async def _changed(
    app: AppContext,
    caller: Principal,
    name: str,
    request: type[RunCancelRequested | RunRetryRequested],
) -> RunDetails:
    """The run after a request about it. Raises problems."""
    _, run = _run(app, caller, name)
    may_change(caller, run.team)
    event = request(team=run.team, run_id=name, user=caller.name)
    _, state = await _answered(app, run.pipeline, event)
    return pipelines_state.run_details(state, state.runs[name])


async def _answered(
    app: AppContext, key: str, event: Event, request_id: str | None = None
) -> tuple[str, PipelineState]:
    """The request's id, and the state with its answer. Raises a 409 or 503 problem."""
    return await answered(app, key, event, lambda: pipelines_of(app.tail.pipelines()), request_id)
