"""/v1/tokens: personal access tokens."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Literal

from fastapi import Path, Query
from starlette.responses import Response

from gangline_gateway import audit
from gangline_gateway.access_tokens import MOST_OF_USER, AccessTokens, new_access_token
from gangline_gateway.app_context import (
    ID_PATTERN,
    App,
    AppContext,
    Caller,
    answers,
    may_change,
    router,
)
from gangline_gateway.problems import conflict, forbidden, not_found
from gangline_schemas.access import TokenScope
from gangline_schemas.api.access import (
    AccessToken,
    AccessTokenBody,
    AccessTokenList,
    NewAccessToken,
)
from gangline_schemas.events.access import AccessTokenSet
from gangline_service.tokens import Principal, Role, token_hash

tokens = router("Access")
TokenId = Annotated[str, Path(pattern=ID_PATTERN, description="The token's id.")]


@tokens.post(
    "/v1/tokens",
    operation_id="createToken",
    summary="Make a personal access token",
    status_code=201,
    response_model=NewAccessToken,
    responses=answers(409),
)
async def create_token(body: AccessTokenBody, app: App, caller: Caller) -> NewAccessToken:
    """Its text is shown this once. A personal access token makes no others."""
    if caller.via == "access-token":
        raise forbidden("a personal access token makes no others: sign in, or use your own token")
    teams = body.teams
    if not teams and caller.role is Role.MEMBER:
        teams = tuple(sorted(caller.teams))
    for team in teams:
        may_change(caller, team, "teams")
    audit.note().team = teams[0] if len(teams) == 1 else ""
    if caller.role is Role.SERVICE:
        raise forbidden("tokens with the role service make no others; use a token of a user")
    known = app.tail.access_tokens
    if sum(known.is_active(one) for one in known.rows(caller.name)) >= MOST_OF_USER:
        raise conflict("too-many-tokens", f"you have {MOST_OF_USER} tokens: revoke one first")
    token, token_id = new_access_token()
    audit.note().target = token_id
    now = app.clock()
    made = AccessTokenSet(
        token_id=token_id,
        name=body.name,
        owner=caller.name,
        source="provider" if caller.via == "sign-in" else "file",
        role="member" if caller.role is Role.MEMBER or body.teams else "admin",
        teams=teams,
        scope=body.scope,
        sha256=token_hash(token),
        made_at=now,
        expires_at=now + timedelta(days=body.days),
    )
    await _publish(app, made)
    return NewAccessToken(**_row(made, known).model_dump(), token=token)


@tokens.get(
    "/v1/tokens",
    operation_id="listTokens",
    summary="List personal access tokens",
    response_model=AccessTokenList,
    responses=answers(),
)
def list_tokens(
    app: App,
    caller: Caller,
    user: Annotated[
        str | None, Query(max_length=256, description="Of this user; needs an admin.")
    ] = None,
    of: Annotated[
        Literal["me", "all"], Query(description="all: of all users; needs an admin.")
    ] = "me",
) -> AccessTokenList:
    """The caller's own, newest first."""
    owner = user or (caller.name if of == "me" else None)
    if owner != caller.name and caller.role is not Role.ADMIN:
        raise forbidden("tokens of other users need a token with the role admin")
    known = app.tail.access_tokens
    return AccessTokenList(tokens=[_row(one, known) for one in known.rows(owner)])


@tokens.delete(
    "/v1/tokens/{token_id}",
    operation_id="revokeToken",
    summary="Revoke a personal access token",
    status_code=204,
    response_class=Response,
    responses=answers(404),
)
async def revoke_token(token_id: TokenId, app: App, caller: Caller) -> Response:
    """It is refused from now on; its event streams end within seconds. Admins revoke any."""
    found = app.tail.access_tokens.get(token_id)
    if found is None or not _may_revoke(caller, found):
        raise not_found("token")
    if found.revoked_at is None:
        gone = {"revoked_at": app.clock(), "revoked_by": caller.name}
        await _publish(app, found.model_copy(update=gone))
    return Response(status_code=204)


def _may_revoke(caller: Principal, found: AccessTokenSet) -> bool:
    """A token may end itself; others are ended by their owner, or by an admin."""
    if caller.token_id == found.token_id:
        return True
    full = caller.scope.includes(TokenScope.ADMIN)
    return full and (caller.role is Role.ADMIN or found.owner == caller.name)


async def _publish(app: AppContext, event: AccessTokenSet) -> None:
    """Until this gateway knows it, if it does so in time: the bus has it then."""
    await app.publisher.publish(event.token_id, event)
    known = app.tail.access_tokens
    await app.tail.until(
        lambda _: True if known.get(event.token_id) == event else None, app.answer_wait_s
    )


def _row(one: AccessTokenSet, known: AccessTokens) -> AccessToken:
    state: Literal["active", "expired", "revoked"] = "revoked"
    if one.revoked_at is None:
        state = "active" if known.is_active(one) else "expired"
    return AccessToken(
        token_id=one.token_id,
        name=one.name,
        owner=one.owner,
        scope=one.scope.value,
        teams=list(one.teams),
        state=state,
        made_at=one.made_at,
        expires_at=one.expires_at,
        revoked_at=one.revoked_at,
    )
