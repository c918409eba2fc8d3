"""/v1/models: models, gates, versions and the evidence about them."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import Query, Response

from gangline_gateway import registry_state
from gangline_gateway.app_context import App, AppContext, Caller, answers, may_change, router
from gangline_gateway.objects import keep, store_of
from gangline_gateway.problems import conflict, invalid
from gangline_gateway.requested_model import (
    ModelPart,
    ModelToChange,
    SeenModel,
    TeamQuery,
    VersionPart,
    decided,
    state_of,
)
from gangline_gateway.routes.jobs import team_of_job
from gangline_gateway.trained_on import trained_on
from gangline_registry.core.model import model_key, version_key
from gangline_registry.core.scores import described, encode
from gangline_schemas.api import models as api
from gangline_schemas.events.model_requests import (
    ApprovalRequested,
    EvaluationRequested,
    GateRemovalRequested,
    GateRequested,
    ServingRequested,
    VersionRequested,
)
from gangline_schemas.gate_file import Gate
from gangline_schemas.models import Evaluation, ServingReport
from gangline_service.tokens import Principal

models = router("Models")
_REGISTER_WAIT_S = 30.0
"""The first version waits until MLflow is loaded."""
_VERSION = "/v1/models/{model}/versions/{version}"


@models.get(
    "/v1/models",
    operation_id="listModels",
    summary="List models with versions or a gate",
    response_model=api.ModelList,
    responses=answers(),
)
def list_models(app: App, caller: Caller, team: TeamQuery = None) -> api.ModelList:
    """By team and name. MLflow also has models that are neither gated nor registered here."""
    found = registry_state.rows(
        state_of(app), lambda one: caller.reads(one) and team in {None, one}
    )
    return api.ModelList(models=[*found])


@models.get(
    "/v1/models/{model}",
    operation_id="getModel",
    summary="A model with its versions, evidence, promotions and moves",
    response_model=api.ModelDetail,
    responses=answers(404, 409),
)
def get_model(model: SeenModel) -> api.ModelDetail:
    """The newest 50 versions, promotions and moves."""
    return registry_state.detail(model.state, model.name)


@models.put(
    "/v1/models/{model}/gate",
    operation_id="setGate",
    summary="Protect aliases by a gate",
    response_model=api.ModelDetail,
    responses=answers(409),
)
async def set_gate(model: ModelPart, body: Gate, app: App, caller: Caller) -> api.ModelDetail:
    """The fields of gate.yaml. MLflow's clients cannot move these aliases from then on."""
    if body.model != model:
        raise invalid("model", f"is {body.model}, while the path says {model}")
    may_change(caller, body.team)
    asked = GateRequested(config=body, user=caller.name)
    state, _ = await decided(app, model_key(body.team, body.model), asked)
    return registry_state.detail(state, (body.team, body.model))


@models.delete(
    "/v1/models/{model}/gate",
    operation_id="removeGate",
    summary="Protect a model's aliases no longer",
    status_code=204,
    responses=answers(404, 409),
)
async def remove_gate(model: ModelToChange) -> Response:
    """The aliases stay where they are, and MLflow's clients may move them."""
    await model.decided(GateRemovalRequested(**model.fields))
    return Response(status_code=204)


@models.post(
    "/v1/models/{model}/versions",
    operation_id="registerVersion",
    summary="Register a promoted checkpoint as a version",
    status_code=201,
    response_model=api.VersionRow,
    responses=answers(404, 409),
)
async def register(
    model: ModelPart, body: api.VersionBody, app: App, caller: Caller, team: TeamQuery = None
) -> api.VersionRow:
    """Or take over a version that MLflow has. The checkpoint service pins its checkpoint.

    The same checkpoint again is the same version.
    """
    snapshot = body.snapshot
    if body.job_id is not None:
        owner = await asyncio.to_thread(team_of_job, app, caller, body.job_id)
        if team not in {None, owner}:
            raise conflict("other-team", f"job {body.job_id} is of team {owner}")
        details = app.details(body.job_id, caller)
        if snapshot is None and details is not None and details.job.spec is not None:
            snapshot = await asyncio.to_thread(trained_on, app.store, owner, details.job.spec)
    else:
        owner = _team_for_new(app, caller, model, team)
    may_change(caller, owner)
    asked = VersionRequested(
        team=owner, model=model, job_id=body.job_id, step=body.step, version=body.version,
        snapshot=snapshot, description=body.description, user=caller.name,
    )  # fmt: skip
    state, answer = await decided(app, model_key(owner, model), asked, _REGISTER_WAIT_S)
    return registry_state.version(state, state.versions[version_key(owner, model, answer.number)])


@models.post(
    f"{_VERSION}/evaluations",
    operation_id="reportEvaluation",
    summary="Report a version's scores in a suite",
    status_code=201,
    response_model=api.VersionRow,
    responses=answers(404, 409),
)
async def report_evaluation(
    version: VersionPart, body: api.EvaluationBody, model: ModelToChange
) -> api.VersionRow:
    """The scores of the items go into the store; the log has their digest, number and mean."""
    scored, raw = await asyncio.to_thread(_scored, model.fields["team"], body)
    await asyncio.to_thread(keep, store_of(model.app), scored.key, raw)
    asked = EvaluationRequested(
        **model.fields, version=version, suite=body.suite, evaluation=scored
    )
    return await model.version_after(version, asked)


@models.post(
    f"{_VERSION}/serving",
    operation_id="reportServing",
    summary="Report what a version needs when it serves",
    status_code=201,
    response_model=api.VersionRow,
    responses=answers(404, 409),
)
async def report_serving(
    version: VersionPart, body: ServingReport, model: ModelToChange
) -> api.VersionRow:
    """Format, size, latency, memory, and the largest difference to the checkpoint's outputs."""
    asked = ServingRequested(**model.fields, version=version, serving=body)
    return await model.version_after(version, asked)


@models.post(
    f"{_VERSION}/approvals",
    operation_id="approveVersion",
    summary="Approve a version",
    status_code=201,
    response_model=api.VersionRow,
    responses=answers(404, 409),
)
async def approve(
    version: VersionPart, body: api.ApprovalBody, model: ModelToChange
) -> api.VersionRow:
    """In the name of the token. That of the user who registered the version does not count."""
    asked = ApprovalRequested(**model.fields, version=version, comment=body.comment)
    return await model.version_after(version, asked)


@models.get(
    f"{_VERSION}/check",
    operation_id="checkVersion",
    summary="Ask the gate about a version, and move nothing",
    response_model=api.Check,
    responses=answers(404, 409),
)
def check(
    version: VersionPart,
    model: SeenModel,
    alias: Annotated[str | None, Query(max_length=63)] = None,
) -> api.Check:
    """Against the version that the alias points to now; default: the gate's first alias."""
    gated, chosen = model.gated(alias)
    return registry_state.check(model.state, model.version(version), gated, chosen)


def _scored(team: str, body: api.EvaluationBody) -> tuple[Evaluation, bytes]:
    """The evaluation and its object."""
    raw = encode(body.scores)
    return described(team, raw, body.scores, job_id=body.job_id, details=body.details), raw


def _team_for_new(app: AppContext, caller: Principal, model: str, team: str | None) -> str:
    """The team of a model that may be new. Raises a 409 or 422 problem."""
    if team is not None:
        return team
    own = [name for name in registry_state.names(state_of(app), caller.reads) if name[1] == model]
    teams = {name[0] for name in own} or set(caller.teams)
    if len(teams) != 1:
        raise invalid("team", "say which team's model it is")
    return teams.pop()
