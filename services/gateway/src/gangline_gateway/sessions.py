"""Sessions of browsers, in memory: a restart of the gateway ends them all.

A session stands for a token, which is checked again with each request. So it ends when the token
is revoked, and has the token's rights. Cookies and codes are kept as hashes.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field

SESSION_S = 12 * 3600.0
CODE_S = 60.0
SESSIONS, CODES = 100, 20
"""Of one token; further ones end its oldest ones."""


@dataclass(frozen=True, slots=True)
class _Kept:
    token: str = field(repr=False)
    until_s: float


class _Secrets:
    """Random secrets that stand for tokens for some time."""

    def __init__(self, lifetime_s: float, most: int, clock: Callable[[], float]) -> None:
        """At most `most` of each token."""
        self._lifetime_s, self._most, self._clock = lifetime_s, most, clock
        self._kept: dict[str, _Kept] = {}
        self._of: dict[str, list[str]] = {}

    def __len__(self) -> int:
        """The number of secrets that are kept."""
        return len(self._kept)

    def make(self, token: str) -> str:
        """A new secret of this token."""
        now_s = self._clock()
        self._forget(now_s)
        secret = secrets.token_urlsafe(32)
        own = self._of.get(token, [])
        if len(own) >= self._most:
            self._remove(own[0])
        name = _hash(secret)
        self._kept[name] = _Kept(token, now_s + self._lifetime_s)
        self._of.setdefault(token, []).append(name)
        return secret

    def token(self, secret: str, *, remove: bool = False) -> str | None:
        """The token that it stands for; None when it is unknown or its time is over."""
        name = _hash(secret)
        found = self._remove(name) if remove else self._kept.get(name)
        return found.token if found is not None and found.until_s > self._clock() else None

    def _forget(self, now_s: float) -> None:
        """Those whose time is over; the oldest come first."""
        while self._kept and self._kept[oldest := next(iter(self._kept))].until_s <= now_s:
            self._remove(oldest)

    def _remove(self, name: str) -> _Kept | None:
        found = self._kept.pop(name, None)
        if found is not None:
            own = self._of[found.token]
            own.remove(name)
            if not own:
                del self._of[found.token]
        return found


class Sessions:
    """Sessions and the one-time codes that begin them. Belongs to one event loop."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._sessions = _Secrets(SESSION_S, SESSIONS, clock)
        self._codes = _Secrets(CODE_S, CODES, clock)

    def code(self, token: str) -> str:
        """A code that begins one session of this token within a minute."""
        return self._codes.make(token)

    def redeem(self, code: str) -> str | None:
        """The token of a code, which is used up."""
        return self._codes.token(code, remove=True)

    def begin(self, token: str) -> str:
        """A session of this token: the value of its cookie."""
        return self._sessions.make(token)

    def token(self, cookie: str) -> str | None:
        """The token of a session; None when it has ended."""
        return self._sessions.token(cookie)

    def end(self, cookie: str) -> None:
        """End a session."""
        self._sessions.token(cookie, remove=True)


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode(errors="surrogatepass")).hexdigest()
