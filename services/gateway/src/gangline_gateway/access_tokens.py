"""Personal access tokens, as gangline.tokens has them: what they may do, and until when.

Only hashes are stored. A token has the rights of its owner within its teams and its scope, as the
owner has them now: an owner who lost a team cannot use it by an old token.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from datetime import UTC, datetime

from gangline_schemas.events.access import AccessTokenSet
from gangline_service.tokens import Principal, Role, new_token, token_hash

PREFIX = "gl_pat_"
"""Logs and job files are searched for its beginning, as for that of all tokens."""
MOST_OF_USER = 50
ENDED_KEPT = 10_000


def new_access_token() -> tuple[str, str]:
    """A token of 256 random bits, and an id that says nothing about it."""
    return new_token(PREFIX), f"t-{secrets.token_hex(6)}"


class AccessTokens:
    """The newest state of each token. Every method may be called from any thread.

    At least the `ended_kept` tokens that were revoked or expired last are kept, and at most about
    twice as many.
    """

    def __init__(
        self,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        ended_kept: int = ENDED_KEPT,
    ) -> None:
        self._clock, self._ended_kept = clock, ended_kept
        self._look_at = 2 * ended_kept
        self._lock = threading.Lock()
        self._by_id: dict[str, AccessTokenSet] = {}
        self._by_hash: dict[str, str] = {}

    def take(self, event: AccessTokenSet) -> None:
        """A token is as this event says from now on."""
        with self._lock:
            self._by_id[event.token_id] = event
            self._by_hash[event.sha256] = event.token_id
            if len(self._by_id) >= self._look_at:
                self._forget()

    def valid(self, token: str) -> AccessTokenSet | None:
        """The token with this text, unless it was revoked or has expired."""
        with self._lock:
            found = self._by_id.get(self._by_hash.get(token_hash(token), ""))
        return found if found is not None and self.is_active(found) else None

    def get(self, token_id: str) -> AccessTokenSet | None:
        """One token by its id."""
        with self._lock:
            return self._by_id.get(token_id)

    def rows(self, owner: str | None = None) -> list[AccessTokenSet]:
        """Those of one owner, or all (None), the newest first."""
        with self._lock:
            found = [one for one in self._by_id.values() if owner in {None, one.owner}]
        return sorted(found, key=lambda one: (one.made_at, one.token_id), reverse=True)

    def is_active(self, found: AccessTokenSet) -> bool:
        """Whether it was not revoked and has not expired."""
        return found.revoked_at is None and self._clock() < found.expires_at

    def _forget(self) -> None:
        ended = [one for one in self._by_id.values() if not self.is_active(one)]
        ended.sort(key=lambda one: one.revoked_at or one.expires_at)
        for one in ended[: max(0, len(ended) - self._ended_kept)]:
            del self._by_id[one.token_id], self._by_hash[one.sha256]
        self._look_at = len(self._by_id) + self._ended_kept


def rights(found: AccessTokenSet, owner: Principal | None) -> Principal | None:
    """The caller with a valid token, by the rights that its owner has now. None: no right is left.

    `owner`: None if the platform does not know the owner any more.
    """
    if owner is None:
        return None
    role, teams = Role(found.role), frozenset(found.teams)
    if owner.role is not Role.ADMIN:
        teams = owner.teams if role is Role.ADMIN and not teams else teams & owner.teams
        role = Role.MEMBER
    if role is Role.MEMBER and not teams:
        return None
    return Principal(
        name=found.owner,
        role=role,
        teams=teams,
        scope=found.scope,
        via="access-token",
        token_id=found.token_id,
    )
