"""Whose token it is: of the file of tokens, a personal access token, or a sign-in's."""

from __future__ import annotations

from dataclasses import dataclass

from gangline_gateway.access_tokens import PREFIX, AccessTokens, rights
from gangline_gateway.oidc import logins as sign_ins
from gangline_gateway.oidc.logins import Logins
from gangline_service.tokens import Principal, TokenBook


@dataclass
class Identities:
    """Everything that a token of a person or service can be. Belongs to one event loop."""

    book: TokenBook
    made: AccessTokens | None = None
    logins: Logins | None = None

    async def authenticate(self, token: str) -> Principal | None:
        """The caller with this token; None when it stands for no user (any more).

        Raises a 503 problem while a sign-in cannot be checked.
        """
        if token.startswith(PREFIX):
            return self._by_access_token(token)
        if token.startswith(sign_ins.PREFIX):
            return await self.logins.authenticate(token) if self.logins is not None else None
        return self.book.authenticate(token)

    def _by_access_token(self, token: str) -> Principal | None:
        found = self.made.valid(token) if self.made is not None else None
        if found is None:
            return None
        if found.source == "file":
            return rights(found, self.book.of_user(found.owner))
        known = self.logins.known(found.owner, found.made_at) if self.logins is not None else None
        return rights(found, known)
