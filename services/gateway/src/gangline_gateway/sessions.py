"""Sessions of browsers. With a file they survive a restart of the gateway.

A session stands for a token, which is checked again with each request. So it ends when the token
is revoked, and has the token's rights. Cookies and codes are kept as hashes. Each token is
encrypted by its cookie, so the file and the memory give no token without a cookie.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from gangline_gateway.sealed import seal, unseal
from gangline_service.private_file import write_private
from gangline_service.tokens import token_hash

log = structlog.get_logger(__name__)

SESSION_S = 12 * 3600.0
CODE_S = 60.0
SESSIONS, CODES = 100, 20
"""Of one token; further ones end its oldest ones."""


@dataclass(frozen=True, slots=True)
class _Kept:
    owner: str
    """The hash of the token."""
    until_s: float
    sealed: str = field(repr=False)

    @classmethod
    def of(cls, token: str, until_s: float, secret: str) -> _Kept:
        return cls(token_hash(token), until_s, seal(token, secret))


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
        kept = _Kept.of(token, now_s + self._lifetime_s, secret)
        own = self._of.get(kept.owner, [])
        if len(own) >= self._most:
            self._remove(own[0])
        self._add(token_hash(secret), kept)
        return secret

    def written(self) -> str:
        """All of them as JSON."""
        rows = {name: [kept.owner, kept.until_s, kept.sealed] for name, kept in self._kept.items()}
        return json.dumps(rows)

    def read(self, text: str) -> None:
        """Add those that `written` gave. Raises ValueError."""
        rows = json.loads(text)
        try:
            for name, (owner, until_s, sealed) in rows.items():
                self._add(str(name), _Kept(str(owner), float(until_s), str(sealed)))
        except (AttributeError, TypeError) as error:
            raise ValueError(str(error)) from None
        self._forget(self._clock())

    def _add(self, name: str, kept: _Kept) -> None:
        self._kept[name] = kept
        self._of.setdefault(kept.owner, []).append(name)

    def token(self, secret: str, *, remove: bool = False) -> str | None:
        """The token that it stands for; None when it is unknown or its time is over."""
        name = token_hash(secret)
        found = self._remove(name) if remove else self._kept.get(name)
        known = found is not None and found.until_s > self._clock()
        return unseal(found.sealed, secret) if found is not None and known else None

    def _forget(self, now_s: float) -> None:
        """Those whose time is over; the oldest come first."""
        while self._kept and self._kept[oldest := next(iter(self._kept))].until_s <= now_s:
            self._remove(oldest)

    def _remove(self, name: str) -> _Kept | None:
        found = self._kept.pop(name, None)
        if found is not None:
            own = self._of[found.owner]
            own.remove(name)
            if not own:
                del self._of[found.owner]
        return found


class Sessions:
    """Sessions and the one-time codes that begin them. Belongs to one event loop."""

    def __init__(self, clock: Callable[[], float] = time.time, file: Path | None = None) -> None:
        """`file`: where sessions are kept, of this gateway alone; None: in memory."""
        self._sessions = _Secrets(SESSION_S, SESSIONS, clock)
        self._codes = _Secrets(CODE_S, CODES, clock)
        self._file = file
        if file is not None and file.exists():
            try:
                self._sessions.read(file.read_text(encoding="utf-8"))
            except (OSError, ValueError) as error:
                log.warning("sessions not read; users sign in again", reason=str(error))

    def code(self, token: str) -> str:
        """A code that begins one session of this token within a minute."""
        return self._codes.make(token)

    def redeem(self, code: str) -> str | None:
        """The token of a code, which is used up."""
        return self._codes.token(code, remove=True)

    def begin(self, token: str) -> str:
        """A session of this token: the value of its cookie."""
        cookie = self._sessions.make(token)
        self._write()
        return cookie

    def token(self, cookie: str) -> str | None:
        """The token of a session; None when it has ended."""
        return self._sessions.token(cookie)

    def end(self, cookie: str) -> None:
        """End a session; a cookie that stands for none changes nothing."""
        if self._sessions.token(cookie, remove=True) is not None:
            self._write()

    def _write(self) -> None:
        """Replace the file; without it sessions end with the gateway, and all else works."""
        if self._file is None:
            return
        try:
            write_private(self._file, self._sessions.written().encode())
        except OSError as error:
            log.warning("sessions not written", file=str(self._file), reason=str(error))
