"""The model that a request is about, and requests to the registry service."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Path, Query

from gangline_gateway import answered, registry_state
from gangline_gateway.app_context import ID_PATTERN, App, AppContext, Caller, may_change
from gangline_gateway.problems import conflict, not_found
from gangline_gateway.publish import SOURCE
from gangline_gateway.registry_state import Name, registry_of
from gangline_registry.core.model import Answer, GatedModel, Registered, model_key, version_key
from gangline_registry.core.state import RegistryState
from gangline_schemas.api.models import VersionRow
from gangline_schemas.base import Event
from gangline_schemas.envelope import request_key
from gangline_schemas.models import NAME_PATTERN
from gangline_service.tokens import Principal

ModelPart = Annotated[str, Path(pattern=NAME_PATTERN, description="The model's name.")]
AliasPart = Annotated[str, Path(pattern=r"^[A-Za-z0-9_-]{1,63}$")]
VersionPart = Annotated[int, Path(ge=1, lt=2**31)]
TeamQuery = Annotated[
    str | None,
    Query(pattern=ID_PATTERN, description="Needed if the token sees the name in several teams."),
]


@dataclass(frozen=True, slots=True)
class RequestedModel:
    """A model that the caller sees, in the state of the registry when the request came."""

    app: AppContext
    caller: Principal
    state: RegistryState
    name: Name

    @property
    def fields(self) -> dict[str, str]:
        """The fields that all requests about a model have."""
        return {"team": self.name[0], "model": self.name[1], "user": self.caller.name}

    def gated(self, alias: str | None) -> tuple[GatedModel, str]:
        """The model's gate and a protected alias; None: its first. Raises a 404 problem."""
        gated = self.state.models.get(model_key(*self.name))
        if gated is None:
            raise not_found("gate of this model")
        chosen = gated.gate.aliases[0] if alias is None else alias
        if chosen not in gated.gate.aliases:
            raise not_found("protected alias of this model")
        return gated, chosen

    def version(self, number: int) -> Registered:
        """A version of the model. Raises a 404 problem."""
        return _version(self.state, self.name, number)

    async def decided(self, event: Event) -> tuple[RegistryState, Answer]:
        """The state with the answer to a request. Raises a 409 or 503 problem."""
        return await decided(self.app, model_key(*self.name), event)

    async def version_after(self, number: int, event: Event) -> VersionRow:
        """A version after a request about it. Raises a 404, 409 or 503 problem."""
        state, _ = await self.decided(event)
        return registry_state.version(state, _version(state, self.name, number))


def _seen(model: ModelPart, app: App, caller: Caller, team: TeamQuery = None) -> RequestedModel:
    """The model that is meant. Raises a 404 or 409 problem."""
    state = state_of(app)
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
    return RequestedModel(app, caller, state, found[0])


SeenModel = Annotated[RequestedModel, Depends(_seen)]


def _to_change(seen: SeenModel) -> RequestedModel:
    may_change(seen.caller, seen.name[0])
    return seen


ModelToChange = Annotated[RequestedModel, Depends(_to_change)]


def state_of(app: AppContext) -> RegistryState:
    """The state of the registry, as far as the gateway has followed it."""
    return registry_of(app.tail.registry())


async def decided(
    app: AppContext, key: str, event: Event, wait_s: float | None = None
) -> tuple[RegistryState, Answer]:
    """The state with the answer to a request. Raises a 409 or 503 problem."""

    def answer(asked: str) -> tuple[RegistryState, str] | None:
        state = state_of(app)
        found = state.requests.get(asked)
        return (state, found.refused) if found is not None and found.done else None

    request_id, state = await answered.decided(app, key, event, answer, wait_s or app.answer_wait_s)
    return state, state.requests[request_key(SOURCE, request_id)]


def _version(state: RegistryState, name: Name, number: int) -> Registered:
    found = state.versions.get(version_key(*name, number))
    if found is None:
        raise not_found("version of this model")
    return found
