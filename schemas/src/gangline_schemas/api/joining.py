"""Tokens by which nodes join, and what a node gets with one."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import ConfigDict, Field, JsonValue

from gangline_schemas.api.base import Answer, Body
from gangline_schemas.base import Identifier

MOST_NODES = 10_000
MOST_SECONDS = 30 * 86_400
NODE_TOKEN_PREFIX = "gl_node_"  # noqa: S105 -- its beginning, by which logs are searched


class NodeTokenBody(Body):
    """How many nodes may join with the token, and how long."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"nodes": 2, "expires_s": 600}]})
    nodes: Annotated[int, Field(ge=1, le=MOST_NODES)] = 1
    expires_s: Annotated[int, Field(ge=1, le=MOST_SECONDS)] = 3600


class NodeToken(Answer):
    """A new token. It is shown once: only its hash is kept."""

    token: str
    nodes: int
    expires_at: datetime
    token_id: str = Field(default="", description="By which it is listed and revoked.")


class ListedNodeToken(Answer):
    """A token by which nodes join, without its text."""

    token_id: str
    nodes: int = Field(description="So many may join with it in all.")
    used: int = Field(description="So many have joined with it.")
    made_by: str
    expires_at: datetime


class NodeTokenList(Answer):
    """Tokens by which nodes join that have not expired, the first to expire first."""

    tokens: list[ListedNodeToken]


class JoinBody(Body):
    """The name under which the node wants to join."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"node_id": "gpu-17"}]})
    node_id: Identifier


class JoinedNode(Answer):
    """All that an agent needs to start on the node."""

    node_id: str
    settings: dict[str, JsonValue] = Field(description="Of the agent, as in its settings file.")
    kafka: dict[str, str] = Field(description="librdkafka's settings of the agents' principal.")
    kafka_ca: str | None = Field(description="The authority of Kafka's certificates, as PEM.")
    files: dict[str, str] = Field(
        default_factory=dict, description="Contents of files (PEM), by the setting that names each."
    )
    environment: dict[str, str] = Field(description="Variables of the agent, such as AWS_REGION.")
    release: str = Field(description="The gateway's release; the agent's should be the same.")
