"""The audit log, and personal access tokens."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, StringConstraints

from gangline_schemas.access import MOST_DAYS, TokenScope
from gangline_schemas.api.base import OPEN_WORD, Answer, Body
from gangline_schemas.base import Identifier
from gangline_schemas.limits import PLAIN


class AuditEntry(Answer):
    """One action of a user, or a refusal."""

    time: datetime
    user: str = Field(description='"": unknown.')
    role: str
    via: str = Field(
        description="token, session, access-token, sign-in, job or none: what stood for the user."
    )
    token: str = Field(description="The id of the personal access token.")
    action: str = Field(description="Such as job.submit; a part before the dot is also a filter.")
    team: str
    target: str = Field(description="The job, node, model or token.")
    outcome: Annotated[Literal["done", "refused", "failed"], OPEN_WORD]
    status: int = Field(description="Of the HTTP answer.")
    address: str = Field(description="Of the client.")
    trace: str = Field(description="The trace id, which is in the gateway's log too.")


class AuditPage(Answer):
    """Entries, newest first."""

    entries: list[AuditEntry]
    cursor: str | None


class AccessTokenBody(Body):
    """The personal access token to make."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"name": "nightly", "scope": "submit", "days": 90}]}
    )
    name: Annotated[str, StringConstraints(min_length=1, max_length=64, pattern=PLAIN)]
    scope: TokenScope = TokenScope.READ
    days: Annotated[int, Field(ge=1, le=MOST_DAYS, description="Until it expires.")] = 90
    teams: Annotated[tuple[Identifier, ...], Field(max_length=100)] = Field(
        default=(), description="Only for these teams; default: all of the caller's."
    )


class AccessToken(Answer):
    """A personal access token, without its text."""

    token_id: str
    name: str
    owner: str
    scope: str = Field(description="read, submit or admin.")
    teams: list[str] = Field(description="Those it is for; none: all of an admin's.")
    state: Annotated[Literal["active", "expired", "revoked"], OPEN_WORD]
    made_at: datetime
    expires_at: datetime
    revoked_at: datetime | None


class NewAccessToken(AccessToken):
    """A personal access token with its text, which is shown once."""

    token: str


class AccessTokenList(Answer):
    """Personal access tokens, newest first."""

    tokens: list[AccessToken]


class LoginBegun(Answer):
    """A sign-in of a terminal: a person types the code at the provider."""

    handle: str
    user_code: str
    verification_uri: str
    verification_uri_complete: str | None = None
    interval_s: float
    expires_s: float


class LoginToken(Answer):
    """The token of a sign-in."""

    token: str
    user: str
    expires_s: int
