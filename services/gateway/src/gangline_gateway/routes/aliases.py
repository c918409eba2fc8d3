"""/v1/models/{model}/aliases: promotions, rollbacks, history, drift and lineage."""

from __future__ import annotations

from itertools import islice
from typing import Annotated

from fastapi import Query

from gangline_gateway import audit, registry_state
from gangline_gateway.app_context import answers, router
from gangline_gateway.lineage import lineage_of
from gangline_gateway.problems import not_found
from gangline_gateway.registry_state import Name
from gangline_gateway.requested_model import AliasPart, ModelToChange, SeenModel, VersionPart
from gangline_gateway.route_rules import OVERRIDE
from gangline_registry.core.model import alias_key
from gangline_registry.core.state import RegistryState
from gangline_schemas.api import models as api
from gangline_schemas.events.model_requests import ModelPromotionRequested, RollbackRequested

aliases = router("Models")
_ALIAS = "/v1/models/{model}/aliases/{alias}"


@aliases.post(
    f"{_ALIAS}/promotions",
    operation_id="promoteVersion",
    summary="Move an alias to a version, if its gate passes it",
    status_code=201,
    response_model=api.Promotion,
    responses=answers(404, 409),
)
async def promote(alias: AliasPart, body: api.PromotionBody, model: ModelToChange) -> api.Promotion:
    """`verdict` is null while scores are compared: read the promotion again then."""
    if body.override is not None:
        audit.note().action = OVERRIDE
    asked = ModelPromotionRequested(
        **model.fields, version=body.version, alias=alias, expected=body.expected,
        override=body.override,
    )  # fmt: skip
    state, answer = await model.decided(asked)
    return _promotion(state, model.name, answer.number)


@aliases.get(
    "/v1/models/{model}/promotions/{promotion}",
    operation_id="getPromotion",
    summary="A promotion with its verdict",
    response_model=api.Promotion,
    responses=answers(404, 409),
)
def get_promotion(promotion: VersionPart, model: SeenModel) -> api.Promotion:
    """One of the newest 1,000 of all models."""
    return _promotion(model.state, model.name, promotion)


@aliases.post(
    f"{_ALIAS}/rollbacks",
    operation_id="rollBack",
    summary="Move an alias back to an earlier version",
    status_code=201,
    response_model=api.Move,
    responses=answers(404, 409),
)
async def roll_back(alias: AliasPart, body: api.RollbackBody, model: ModelToChange) -> api.Move:
    """Needs no evidence, and neither MLflow nor the object store."""
    asked = RollbackRequested(
        **model.fields, alias=alias, to=body.to, expected=body.expected, reason=body.reason
    )
    state, answer = await model.decided(asked)
    return registry_state.move(state.moves[answer.number])


@aliases.get(
    f"{_ALIAS}/history",
    operation_id="listMoves",
    summary="The moves of an alias",
    response_model=api.MoveList,
    responses=answers(404, 409),
)
def history(
    alias: AliasPart, model: SeenModel, limit: Annotated[int, Query(ge=1, le=1000)] = 100
) -> api.MoveList:
    """The newest first, also of an alias that is not protected any more."""
    found = registry_state.moves(model.state, model.name, alias)
    return api.MoveList(moves=[*islice(found, limit)])


@aliases.get(
    f"{_ALIAS}/drift",
    operation_id="getDrift",
    summary="The data of an alias's version: age, and drift of later snapshots",
    response_model=api.Drift,
    responses=answers(404, 409),
)
def drift(alias: AliasPart, model: SeenModel) -> api.Drift:
    """Compared are profiles, so no data are read."""
    gated, chosen = model.gated(alias)
    return registry_state.drift(model.state, gated, chosen, model.app.clock())


@aliases.get(
    f"{_ALIAS}/lineage",
    operation_id="getLineage",
    summary="Where an alias's version comes from",
    response_model=api.Lineage,
    responses=answers(404, 409),
)
def lineage(alias: AliasPart, model: SeenModel) -> api.Lineage:
    """Alias, version, checkpoint, run with its failures, code, image, seed, and data."""
    _, chosen = model.gated(alias)
    pointer = model.state.aliases[alias_key(*model.name, chosen)]
    if not pointer.version:
        raise not_found("version of this alias yet")
    one = model.version(pointer.version)
    return lineage_of(model.app, model.caller, model.state, one, chosen)


def _promotion(state: RegistryState, name: Name, number: int) -> api.Promotion:
    one = state.promotions.get(number) or state.judged.get(number)
    if one is None or (one.team, one.model) != name:
        raise not_found("promotion of this model")
    return registry_state.promotion(one)
