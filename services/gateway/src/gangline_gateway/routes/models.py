"""/v1/models: gates, versions, evidence, protected aliases, drift."""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import Annotated

from fastapi import Path, Query, Response
from pydantic import ValidationError

from gangline_gateway import registry_state
from gangline_gateway.app_context import (
    ID_PATTERN,
    App,
    AppContext,
    Caller,
    answers,
    may_change,
    router,
)
from gangline_gateway.lineage import lineage_of
from gangline_gateway.problems import conflict, invalid, not_found, unavailable
from gangline_gateway.publish import SOURCE
from gangline_gateway.registry_state import Name, registry_of
from gangline_gateway.routes.jobs import team_of_job
from gangline_registry.core.model import Answer, GatedModel, Registered, version_key
from gangline_registry.core.profile import Profile, write_profile
from gangline_registry.core.scores import PREFIX, BadScores, described, encode
from gangline_registry.core.scores import check as check_scores
from gangline_registry.core.state import RegistryState, request_key
from gangline_schemas.api import models as api
from gangline_schemas.base import Event, field_errors
from gangline_schemas.events.model_requests import (
    ApprovalRequested,
    EvaluationRequested,
    GateRemovalRequested,
    GateRequested,
    ModelPromotionRequested,
    RollbackRequested,
    ServingRequested,
    SnapshotProfiled,
    VersionRequested,
)
from gangline_schemas.events.requests import CheckpointPinRequested
from gangline_schemas.gate_file import Gate
from gangline_schemas.models import ProfileRef, ServingReport
from gangline_service.tokens import Principal
from gangline_storage.errors import AlreadyExists, StoreError

models = router("Models")
PROFILES_SHOWN = 500
_REGISTER_WAIT_S = 30.0
"""The first version waits until MLflow is loaded."""
_NAME = r"^[A-Za-z0-9_][A-Za-z0-9._-]{0,127}$"
ModelPart = Annotated[str, Path(pattern=_NAME, description="The model's name.")]
AliasPart = Annotated[str, Path(pattern=r"^[A-Za-z0-9_-]{1,63}$")]
VersionPart = Annotated[int, Path(ge=1, lt=2**31)]
TeamQuery = Annotated[
    str | None,
    Query(pattern=ID_PATTERN, description="Needed if the token sees the name in several teams."),
]


@models.get(
    "/v1/models",
    operation_id="listModels",
    summary="List models with versions or a gate",
    response_model=api.ModelList,
    responses=answers(),
)
def list_models(app: App, caller: Caller, team: TeamQuery = None) -> api.ModelList:
    """By team and name. MLflow also has models that are neither gated nor registered here."""
    found = registry_state.rows(_state(app), lambda one: caller.reads(one) and team in {None, one})
    return api.ModelList(models=[*found])


@models.get(
    "/v1/models/{model}",
    operation_id="getModel",
    summary="A model with its versions, evidence, promotions and moves",
    response_model=api.ModelDetail,
    responses=answers(404, 409),
)
def get_model(
    model: ModelPart, app: App, caller: Caller, team: TeamQuery = None
) -> api.ModelDetail:
    """The newest 50 versions, promotions and moves."""
    state = _state(app)
    return registry_state.detail(state, _named(state, caller, model, team))


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
    state, _ = await _decided(app, body.team, GateRequested(config=body, user=caller.name))
    return registry_state.detail(state, (body.team, body.model))


@models.delete(
    "/v1/models/{model}/gate",
    operation_id="removeGate",
    summary="Protect a model's aliases no longer",
    status_code=204,
    responses=answers(404, 409),
)
async def remove_gate(
    model: ModelPart, app: App, caller: Caller, team: TeamQuery = None
) -> Response:
    """The aliases stay where they are, and MLflow's clients may move them."""
    owner, name = _to_change(app, caller, model, team)
    await _decided(app, owner, GateRemovalRequested(team=owner, model=name, user=caller.name))
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
    """Or take over a version that MLflow has. The checkpoint is pinned: retention leaves it.

    The same checkpoint again is the same version.
    """
    snapshot = body.snapshot
    if body.job_id is not None:
        owner = await asyncio.to_thread(team_of_job, app, caller, body.job_id)
        if team not in {None, owner}:
            raise conflict("other-team", f"job {body.job_id} is of team {owner}")
        details = app.details(body.job_id, caller)
        if snapshot is None and details is not None and details.job.spec is not None:
            snapshot = details.job.spec.data_snapshot
    else:
        owner = _team_for_new(app, caller, model, team)
    may_change(caller, owner)
    asked = VersionRequested(
        team=owner, model=model, job_id=body.job_id, step=body.step, version=body.version,
        snapshot=snapshot, description=body.description, user=caller.name,
    )  # fmt: skip
    state, answer = await _decided(app, owner, asked, _REGISTER_WAIT_S)
    one = state.versions[version_key(owner, model, answer.number)]
    if one.checkpoint is not None:
        checkpoint = one.checkpoint
        pin = CheckpointPinRequested(
            job_id=checkpoint.job_id, step=checkpoint.step, user=caller.name
        )
        await app.publisher.publish(checkpoint.job_id, pin)
    return registry_state.version(state, one)


@models.post(
    "/v1/models/{model}/versions/{version}/evaluations",
    operation_id="reportEvaluation",
    summary="Report a version's scores in a suite",
    status_code=201,
    response_model=api.VersionRow,
    responses=answers(404, 409),
)
async def report_evaluation(
    model: ModelPart,
    version: VersionPart,
    body: api.EvaluationBody,
    app: App,
    caller: Caller,
    team: TeamQuery = None,
) -> api.VersionRow:
    """The scores of the items go into the store; the log has their digest, number and mean."""
    owner, name = _to_change(app, caller, model, team)
    try:
        check_scores(body.scores)
    except BadScores as error:
        raise invalid("scores", str(error)) from None
    raw = encode(body.scores)
    scored = described(owner, raw, body.scores, job_id=body.job_id, details=body.details)
    await asyncio.to_thread(keep, app, scored.key, raw)
    asked = EvaluationRequested(
        team=owner, model=name, version=version, suite=body.suite, evaluation=scored,
        user=caller.name,
    )  # fmt: skip
    state, _ = await _decided(app, owner, asked)
    return registry_state.version(state, _version(state, (owner, name), version))


@models.post(
    "/v1/models/{model}/versions/{version}/serving",
    operation_id="reportServing",
    summary="Report what a version needs when it serves",
    status_code=201,
    response_model=api.VersionRow,
    responses=answers(404, 409),
)
async def report_serving(
    model: ModelPart,
    version: VersionPart,
    body: ServingReport,
    app: App,
    caller: Caller,
    team: TeamQuery = None,
) -> api.VersionRow:
    """Format, size, latency, memory, and the largest difference to the checkpoint's outputs."""
    owner, name = _to_change(app, caller, model, team)
    asked = ServingRequested(
        team=owner, model=name, version=version, serving=body, user=caller.name
    )
    state, _ = await _decided(app, owner, asked)
    return registry_state.version(state, _version(state, (owner, name), version))


@models.post(
    "/v1/models/{model}/versions/{version}/approvals",
    operation_id="approveVersion",
    summary="Approve a version",
    status_code=201,
    response_model=api.VersionRow,
    responses=answers(404, 409),
)
async def approve(
    model: ModelPart,
    version: VersionPart,
    body: api.ApprovalBody,
    app: App,
    caller: Caller,
    team: TeamQuery = None,
) -> api.VersionRow:
    """In the name of the token. That of the user who registered the version does not count."""
    owner, name = _to_change(app, caller, model, team)
    asked = ApprovalRequested(
        team=owner, model=name, version=version, comment=body.comment, user=caller.name
    )
    state, _ = await _decided(app, owner, asked)
    return registry_state.version(state, _version(state, (owner, name), version))


@models.get(
    "/v1/models/{model}/versions/{version}/check",
    operation_id="checkVersion",
    summary="Ask the gate about a version, and move nothing",
    response_model=api.Check,
    responses=answers(404, 409),
)
def check(
    model: ModelPart,
    version: VersionPart,
    app: App,
    caller: Caller,
    alias: Annotated[str | None, Query(max_length=63)] = None,
    team: TeamQuery = None,
) -> api.Check:
    """Against the version that the alias points to now; default: the gate's first alias."""
    state = _state(app)
    name = _named(state, caller, model, team)
    gated, chosen = _gated(state, name, alias)
    return registry_state.check(state, _version(state, name, version), gated, chosen)


@models.post(
    "/v1/models/{model}/aliases/{alias}/promotions",
    operation_id="promoteVersion",
    summary="Move an alias to a version, if its gate passes it",
    status_code=201,
    response_model=api.Promotion,
    responses=answers(404, 409),
)
async def promote(
    model: ModelPart,
    alias: AliasPart,
    body: api.PromotionBody,
    app: App,
    caller: Caller,
    team: TeamQuery = None,
) -> api.Promotion:
    """`verdict` is null while scores are compared: read the promotion again then."""
    owner, name = _to_change(app, caller, model, team)
    asked = ModelPromotionRequested(
        team=owner, model=name, version=body.version, alias=alias, expected=body.expected,
        override=body.override, user=caller.name,
    )  # fmt: skip
    state, answer = await _decided(app, owner, asked)
    return _promotion(state, answer.number)


@models.get(
    "/v1/models/{model}/promotions/{promotion}",
    operation_id="getPromotion",
    summary="A promotion with its verdict",
    response_model=api.Promotion,
    responses=answers(404, 409),
)
def get_promotion(
    model: ModelPart,
    promotion: VersionPart,
    app: App,
    caller: Caller,
    team: TeamQuery = None,
) -> api.Promotion:
    """One of the newest 1,000 of all models."""
    state = _state(app)
    name = _named(state, caller, model, team)
    one = state.promotions.get(promotion) or state.judged.get(promotion)
    if one is None or (one.team, one.model) != name:
        raise not_found("promotion of this model")
    return registry_state.promotion(one)


@models.post(
    "/v1/models/{model}/aliases/{alias}/rollbacks",
    operation_id="rollBack",
    summary="Move an alias back to an earlier version",
    status_code=201,
    response_model=api.Move,
    responses=answers(404, 409),
)
async def roll_back(
    model: ModelPart,
    alias: AliasPart,
    body: api.RollbackBody,
    app: App,
    caller: Caller,
    team: TeamQuery = None,
) -> api.Move:
    """Needs no evidence, and neither MLflow nor the object store."""
    owner, name = _to_change(app, caller, model, team)
    asked = RollbackRequested(
        team=owner, model=name, alias=alias, to=body.to, expected=body.expected,
        reason=body.reason, user=caller.name,
    )  # fmt: skip
    state, answer = await _decided(app, owner, asked)
    return registry_state.move(state.moves[answer.number])


@models.get(
    "/v1/models/{model}/aliases/{alias}/history",
    operation_id="listMoves",
    summary="The moves of an alias",
    response_model=api.MoveList,
    responses=answers(404, 409),
)
def history(
    model: ModelPart,
    alias: AliasPart,
    app: App,
    caller: Caller,
    team: TeamQuery = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> api.MoveList:
    """The newest first, also of an alias that is not protected any more."""
    state = _state(app)
    found = registry_state.moves(state, _named(state, caller, model, team), alias)
    return api.MoveList(moves=[*islice(found, limit)])


@models.get(
    "/v1/models/{model}/aliases/{alias}/drift",
    operation_id="getDrift",
    summary="The data of an alias's version: age, and drift of later snapshots",
    response_model=api.Drift,
    responses=answers(404, 409),
)
def drift(
    model: ModelPart, alias: AliasPart, app: App, caller: Caller, team: TeamQuery = None
) -> api.Drift:
    """Compared are profiles, so no data are read."""
    state = _state(app)
    gated, chosen = _gated(state, _named(state, caller, model, team), alias)
    return registry_state.drift(state, gated, chosen, app.clock())


@models.get(
    "/v1/models/{model}/aliases/{alias}/lineage",
    operation_id="getLineage",
    summary="Where an alias's version comes from",
    response_model=api.Lineage,
    responses=answers(404, 409),
)
def lineage(
    model: ModelPart, alias: AliasPart, app: App, caller: Caller, team: TeamQuery = None
) -> api.Lineage:
    """Alias, version, checkpoint, run with its failures, code, image, seed, and data."""
    state = _state(app)
    name = _named(state, caller, model, team)
    gated, chosen = _gated(state, name, alias)
    pointer = state.aliases[f"{gated.gate.team}/{gated.gate.model}/{chosen}"]
    if not pointer.version:
        raise not_found("version of this alias yet")
    return lineage_of(app, caller, state, _version(state, name, pointer.version), chosen)


@models.get(
    "/v1/profiles",
    operation_id="listProfiles",
    summary="List snapshots that have profiles",
    response_model=api.ProfileList,
    responses=answers(),
)
def list_profiles(app: App, caller: Caller, team: TeamQuery = None) -> api.ProfileList:
    """Of the caller's teams, the newest first."""
    found = [
        registry_state.profile(one)
        for one in reversed(_state(app).profiles.values())
        if caller.reads(one.team) and team in {None, one.team}
    ]
    return api.ProfileList(profiles=found[:PROFILES_SHOWN])


@models.post(
    "/v1/profiles",
    operation_id="sendProfile",
    summary="Send the profile of a snapshot of data",
    status_code=201,
    response_model=api.ProfileRow,
    responses=answers(409),
)
async def send_profile(
    body: api.ProfileBody,
    app: App,
    caller: Caller,
    team: Annotated[str, Query(pattern=ID_PATTERN, description="The team whose data it is.")],
) -> api.ProfileRow:
    """It is compared with the data of the versions that protected aliases point to."""
    may_change(caller, team)
    try:
        profile = Profile.model_validate(body.profile)
    except ValidationError as error:
        first = field_errors(error)[0]
        raise invalid(f"profile.{first.field}", first.message) from None
    raw, digest = await asyncio.to_thread(write_profile, profile)
    ref = ProfileRef(
        digest=digest, key=f"{PREFIX}/{team}/profiles/{digest}.json", rows=profile.rows,
        columns=len(profile.columns), made_at=body.made_at, serving=body.serving,
    )  # fmt: skip
    await asyncio.to_thread(keep, app, ref.key, raw)
    asked = SnapshotProfiled(team=team, snapshot=body.snapshot, profile=ref, user=caller.name)
    state, _ = await _decided(app, team, asked)
    return registry_state.profile(state.profiles[f"{team}/{body.snapshot}"])


def keep(app: AppContext, key: str, raw: bytes) -> None:
    """Put an object that its content names. Raises a 503 problem."""
    if app.store is None:
        raise unavailable("store-away", "no store is configured: set store_url")
    try:
        app.store.put(key, raw, if_absent=True)
    except AlreadyExists:
        return
    except StoreError as error:
        raise unavailable("store-away", f"the store rejected it: {type(error).__name__}") from None


def _state(app: AppContext) -> RegistryState:
    return registry_of(app.tail.registry())


def _named(state: RegistryState, caller: Principal, model: str, team: str | None) -> Name:
    """The model that is meant. Raises a 404 or 409 problem."""
    found = [
        name
        for name in registry_state.names(state, caller.reads)
        if name[1] == model and team in {None, name[0]}
    ]
    if not found:
        raise not_found("model")
    if len(found) > 1:
        teams = ", ".join(name[0] for name in found)
        raise conflict("several-teams", f"several teams have a model {model}: add team=, {teams}")
    return found[0]


def _to_change(app: AppContext, caller: Principal, model: str, team: str | None) -> Name:
    name = _named(_state(app), caller, model, team)
    may_change(caller, name[0])
    return name


def _team_for_new(app: AppContext, caller: Principal, model: str, team: str | None) -> str:
    """The team of a model that may be new. Raises a 409 or 422 problem."""
    if team is not None:
        return team
    own = [name for name in registry_state.names(_state(app), caller.reads) if name[1] == model]
    teams = {name[0] for name in own} or set(caller.teams)
    if len(teams) != 1:
        raise invalid("team", "say which team's model it is")
    return teams.pop()


def _gated(state: RegistryState, name: Name, alias: str | None) -> tuple[GatedModel, str]:
    """The model's gate and a protected alias. Raises a 404 problem."""
    gated = state.models.get(f"{name[0]}/{name[1]}")
    if gated is None:
        raise not_found("gate of this model")
    chosen = gated.gate.aliases[0] if alias is None else alias
    if chosen not in gated.gate.aliases:
        raise not_found("protected alias of this model")
    return gated, chosen


def _version(state: RegistryState, name: Name, version: int) -> Registered:
    found = state.versions.get(version_key(*name, version))
    if found is None:
        raise not_found("version of this model")
    return found


def _promotion(state: RegistryState, number: int) -> api.Promotion:
    one = state.promotions.get(number) or state.judged[number]
    return registry_state.promotion(one)


async def _decided(
    app: AppContext, team: str, event: Event, wait_s: float | None = None
) -> tuple[RegistryState, Answer]:
    """The state with the request's answer. Raises a 409 or 503 problem."""
    model = getattr(event, "model", team)
    request_id = await app.publisher.publish(f"{team}/{model}", event)
    key = request_key(SOURCE, request_id)

    def answered(_: object) -> RegistryState | None:
        state = _state(app)
        answer = state.requests.get(key)
        return state if answer is not None and answer.done else None

    state = await app.tail.until(answered, wait_s or app.answer_wait_s)
    if state is None:
        raise unavailable("undecided", "the registry has not answered yet; look again")
    answer = state.requests[key]
    if answer.refused:
        raise conflict("refused", answer.refused)
    return state, answer
