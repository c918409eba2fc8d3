"""/v1/node-tokens and /v1/nodes/join: nodes join with a token that an admin made."""

from __future__ import annotations

import asyncio
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import structlog
from fastapi import Path as InPath
from fastapi import Request, Response

from gangline_gateway import audit
from gangline_gateway.app_context import Admin, App, AppContext, answers, router
from gangline_gateway.node_settings import NodeSettingsError, read_node_settings
from gangline_gateway.node_tokens import JOIN_PATH, NOT_VALID, NodeTokens, id_of, in_store
from gangline_gateway.problems import ProblemError, conflict
from gangline_schemas.api.joining import (
    JoinBody,
    JoinedNode,
    ListedNodeToken,
    NodeToken,
    NodeTokenBody,
    NodeTokenList,
)

joining = router("Cluster")
log = structlog.get_logger(__name__)
TokenId = Annotated[str, InPath(pattern="^n-[0-9a-f]{12}$")]
_PRESENT = frozenset({"ready", "suspected", "draining", "cordoned", "outdated"})


@joining.post(
    "/v1/node-tokens",
    operation_id="makeNodeToken",
    summary="Make a token by which nodes join",
    status_code=201,
    response_model=NodeToken,
    responses=answers(409),
)
async def make_token(body: NodeTokenBody, app: App, caller: Admin) -> NodeToken:
    """Needs an admin. The token is shown once; its hash is kept in the store."""
    tokens, file = _joining(app)
    await asyncio.to_thread(_settings, file, "node")  # a wrong file is found now
    token, kept = await in_store(tokens.make, body.nodes, body.expires_s, caller.name)
    log.info("node.token_made", by=caller.name, nodes=kept.nodes, until=str(kept.expires_at))
    return NodeToken(
        token=token, nodes=kept.nodes, expires_at=kept.expires_at, token_id=id_of(token)
    )


@joining.get(
    "/v1/node-tokens",
    operation_id="listNodeTokens",
    summary="List tokens by which nodes join",
    response_model=NodeTokenList,
    responses=answers(409),
)
async def list_tokens(app: App, _caller: Admin) -> NodeTokenList:
    """Needs an admin. Those that have not expired, the first to expire first."""
    tokens, _ = _joining(app)
    rows = await in_store(tokens.valid)
    return NodeTokenList(
        tokens=[
            ListedNodeToken(
                token_id=row.token_id,
                nodes=row.kept.nodes,
                used=row.used,
                made_by=row.kept.made_by,
                expires_at=row.kept.expires_at,
            )
            for row in rows
        ]
    )


@joining.delete(
    "/v1/node-tokens/{token_id}",
    operation_id="revokeNodeToken",
    summary="Revoke a token by which nodes join",
    status_code=204,
    response_class=Response,
    responses=answers(404, 409),
)
async def revoke_token(token_id: TokenId, app: App, caller: Admin) -> Response:
    """Needs an admin. No further node joins with it; those that have joined stay."""
    tokens, _ = _joining(app)
    if not await in_store(tokens.revoke, token_id):
        raise ProblemError(
            404,
            "not-found",
            f"there is no token {token_id} that is valid: `gangline node tokens` lists them",
        )
    log.info("node.token_revoked", by=caller.name, token=token_id)
    return Response(status_code=204)


@joining.post(
    JOIN_PATH,
    operation_id="joinNode",
    summary="Join as a node",
    response_model=JoinedNode,
    responses=answers(409),
)
async def join(body: JoinBody, request: Request, app: App) -> JoinedNode:
    """Needs a token of POST /v1/node-tokens. The answer has all that the node's agent needs.

    409 if a node of this name is present; the token is not used up then.
    """
    audit.note().target = body.node_id
    tokens, file = _joining(app)
    present = app.tail.view().node(body.node_id)
    if present is not None and present.status in _PRESENT:
        raise conflict(
            "node-present",
            f"node {body.node_id} is {present.status}: choose another --node-id, or stop its agent "
            "there and wait until it has left",
        )
    found = await asyncio.to_thread(_settings, file, body.node_id)
    token: str = request.state.node_token
    if not await in_store(tokens.use, token, body.node_id):
        raise ProblemError(401, "no-token", NOT_VALID)
    log.info("node.joins", node=body.node_id)
    return found


def _joining(app: AppContext) -> tuple[NodeTokens, Path]:
    if app.node_tokens is None or app.nodes_file is None:
        raise conflict(
            "no-node-settings",
            "this gateway lets no node join: set GANGLINE_NODES_FILE and GANGLINE_STORE_URL",
        )
    return app.node_tokens, app.nodes_file


def _settings(file: Path, node_id: str) -> JoinedNode:
    try:
        return read_node_settings(file, node_id, version("gangline-gateway"))
    except NodeSettingsError as error:
        raise conflict("no-node-settings", str(error)) from None
