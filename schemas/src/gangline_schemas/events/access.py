"""gangline.audit: who did what through the gateway. gangline.tokens: personal access tokens."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from gangline_schemas.access import ActionName, Sha256, TokenScope, Via
from gangline_schemas.base import Event, Identifier, Team, Timestamp
from gangline_schemas.limits import Label, Name, User

AUDIT_SUBJECT = "gangline.audit"
"""The subject of all records of the audit log; no job or node has a dot in its name."""


class ActionAudited(Event):
    """A user did something through the gateway, or was refused."""

    type: ClassVar[str] = "action.audited"
    user: User = Field(description='"": unknown.')
    role: Label = ""
    via: Via = Field(description="The proof of the user.")
    token: Label = Field(default="", description="The id of the personal access token.")
    action: ActionName
    team: Team = Field(default="", description='The team whose work it is; "": none.')
    target: Label = Field(default="", description="The job, node, model or token.")
    outcome: Literal["done", "refused", "failed"] = Field(
        description="refused: the user has no right to it; failed: for any other reason."
    )
    status: Annotated[int, Field(ge=100, le=599)] = Field(description="Of the HTTP answer.")
    address: Label = Field(default="", description="Of the client.")
    trace: Label = ""


class AccessTokenSet(Event):
    """A personal access token, as it is from now on. Only its hash is kept."""

    type: ClassVar[str] = "access.token.set"
    token_id: Identifier
    name: Name = Field(description="As its owner calls it.")
    owner: Name
    source: Literal["file", "provider"] = Field(
        description="Where the owner's rights are: the file of tokens, or the sign-in's provider."
    )
    role: Literal["admin", "member"] = Field(description="Of the owner, when it was made.")
    teams: Annotated[tuple[Identifier, ...], Field(max_length=1000)] = Field(
        default=(), description="The teams it is for; an admin's without teams is for all."
    )
    scope: TokenScope
    sha256: Sha256
    made_at: Timestamp
    expires_at: Timestamp
    revoked_at: Timestamp | None = None
    revoked_by: User = ""
