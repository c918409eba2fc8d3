"""The audit log, personal access tokens, and signing in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from urllib.parse import urlencode

import httpx

from gangline.errors import CliError
from gangline.sdk.answers import path_id, read
from gangline.sdk.calls import Calls
from gangline.transport import problem_of
from gangline_schemas.api.access import (
    AccessToken,
    AccessTokenList,
    AuditEntry,
    AuditPage,
    LoginBegun,
    LoginToken,
    NewAccessToken,
)


class Access(Calls):
    """The audit log, personal access tokens, and signing in."""

    def audit(
        self,
        *,
        user: str | None = None,
        team: str | None = None,
        action: str | None = None,
        outcome: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int | None = None,
    ) -> Iterator[AuditEntry]:
        """The changes and refusals of users, newest first, page by page; `limit` None: all.

        Of the token's teams and its own user; of everybody for admins. `action`: such as
        job.submit, or `job` for all that begin with it. `outcome`: done, refused or failed.
        """
        return self._items(
            AuditPage,
            "/v1/audit",
            "entries",
            limit,
            user=user,
            team=team,
            action=action,
            outcome=outcome,
            since=since.isoformat() if since else None,
            until=until.isoformat() if until else None,
        )

    def create_token(
        self, name: str, *, scope: str = "read", days: int = 90, teams: Sequence[str] = ()
    ) -> NewAccessToken:
        """Make a personal access token: its text is in `token`, this once.

        `scope`: read, submit (also change work of your teams) or admin (all that you may do).
        `teams`: only for these; default: all of yours.
        """
        body = {"name": name, "scope": scope, "days": days, "teams": list(teams)}
        return self._read(NewAccessToken, "POST", "/v1/tokens", body=body)

    def tokens(self, user: str | None = None, *, everybody: bool = False) -> Sequence[AccessToken]:
        """Your personal access tokens, newest first; of another user or all needs an admin."""
        params = {"user": user, "of": "all" if everybody else None}
        return self._read(AccessTokenList, "GET", "/v1/tokens", params=params).tokens

    def revoke_token(self, token_id: str) -> None:
        """End a personal access token now."""
        self._transport.call("DELETE", f"/v1/tokens/{path_id(token_id)}", repeatable=True)

    def begin_login(self) -> LoginBegun:
        """Begin a sign-in at the provider: the code to type, and where."""
        return read(LoginBegun, self._transport.call("POST", "/session/device"))

    def login_token(self, handle: str) -> LoginToken | None:
        """The token of a sign-in; None while the person has not typed the code."""
        found = self._transport.call(
            "POST",
            "/session/device/token",
            content=urlencode({"handle": handle}).encode(),
            headers={"Content-Type": "application/x-www-form-urlencoded"},
        )
        return None if "token" not in found else read(LoginToken, found)

    def logout(self) -> None:
        """End the sign-in whose token this is. Raises CliError."""
        try:
            answer = self._transport.send("POST", "/session/end", timeout_s=10.0)
        except httpx.TransportError as error:
            raise CliError(f"no answer: {type(error).__name__}") from None
        if answer.is_error:
            raise problem_of(answer)
