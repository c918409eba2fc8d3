"""The tokens and their owners: a JSON file of hashes that only its owner can read.

    {"tokens": [{"name": "grafana", "role": "member", "teams": ["nlp"], "sha256": "<64 hex>"}]}

Tokens themselves are never stored. They are long and random, so a plain hash is enough.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import stat
import threading
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Self

import structlog
from pydantic import Field, StringConstraints, ValidationError

from gangline_schemas.access import Sha256, TokenScope, Via
from gangline_schemas.base import Identifier, Model, field_errors

from .private_file import write_private

log = structlog.get_logger(__name__)

MAX_TOKEN_CHARS = 512
_PRIVATE = 0o077


class TokenFileError(Exception):
    """The file of tokens cannot be used. The message names what is wrong and the way out."""


class Role(StrEnum):
    """The rights of a token."""

    ADMIN = "admin"  # everything, for every team
    MEMBER = "member"  # its teams' jobs and data
    SERVICE = "service"  # one of Gangline's own processes: reads every team's data


class TokenEntry(Model):
    """One token as the file has it. Tokens of members list the teams they belong to."""

    name: Annotated[str, StringConstraints(min_length=1, max_length=128)]
    role: Role
    teams: tuple[Identifier, ...] = ()
    sha256: Sha256

    @classmethod
    def of(cls, token: str, *, name: str, role: Role, teams: Iterable[str] = ()) -> Self:
        """The entry of a token."""
        return cls(name=name, role=role, teams=tuple(teams), sha256=token_hash(token))


class TokenFile(Model):
    """The whole file."""

    tokens: tuple[TokenEntry, ...] = Field(max_length=10_000)


class Principal(Model):
    """The sender of a request."""

    name: str
    role: Role
    teams: frozenset[str]
    scope: TokenScope = TokenScope.ADMIN
    via: Via = "token"
    token_id: str = ""
    """Of a personal access token."""

    @property
    def all_teams(self) -> bool:
        """Whether every team's data is open to it."""
        return self.role is not Role.MEMBER

    def reads(self, team: str) -> bool:
        """Whether this team's data is open to it."""
        return self.all_teams or team in self.teams


def new_token(prefix: str = "gl_") -> str:
    """A token of 256 random bits. Logs and job files are searched for `gl_`."""
    return prefix + secrets.token_urlsafe(32)


def write_tokens(path: Path, entries: Iterable[TokenEntry]) -> None:
    """Write the file whole or not at all, readable by its owner only."""
    write_private(path, TokenFile(tokens=tuple(entries)).encode(), durable=True)


class TokenBook:
    """The tokens of a file, read again whenever it changes. May be used from any thread.

    While a changed file cannot be read, every token is refused: it may have been revoked.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._seen: tuple[int, ...] | None = None
        self._callers: dict[str, Principal] = {}  # by the token's hash

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read the file. Raises TokenFileError when it cannot be used."""
        book = cls(path)
        book._seen, book._callers = _read(path)
        return book

    def authenticate(self, token: str) -> Principal | None:
        """The caller with this token; None when it is unknown.

        Hashes are looked up, not tokens, so the time that it takes tells nothing of any token.
        """
        if not token or len(token) > MAX_TOKEN_CHARS:
            return None
        return self._current().get(token_hash(token))

    def of_user(self, name: str) -> Principal | None:
        """The rights of a user: those of all their tokens together. None: there are none."""
        found = [caller for caller in self._current().values() if caller.name == name]
        people = [caller for caller in found if caller.role is not Role.SERVICE]
        if not people:
            return None
        roles = {caller.role for caller in people}
        return Principal(
            name=name,
            role=Role.ADMIN if Role.ADMIN in roles else Role.MEMBER,
            teams=frozenset().union(*(caller.teams for caller in people)),
        )

    def knows(self, name: str) -> bool:
        """Whether some token has this name."""
        return any(caller.name == name for caller in self._current().values())

    def has_team(self, team: str) -> bool:
        """Whether some token names this team."""
        return any(team in caller.teams for caller in self._current().values())

    def _current(self) -> dict[str, Principal]:
        with self._lock:
            try:
                if _identity(self._path.stat()) != self._seen:
                    self._seen, self._callers = _read(self._path)
            except (OSError, TokenFileError) as error:
                if self._callers:
                    log.error("tokens refused", error=str(error))  # noqa: TRY400
                self._seen, self._callers = None, {}
            return self._callers


def token_hash(token: str) -> str:
    """The hash of a token, which is all that is stored of it."""
    return hashlib.sha256(token.encode(errors="surrogatepass")).hexdigest()


def _identity(found: os.stat_result) -> tuple[int, ...]:
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_mode, found.st_uid


def _read(path: Path) -> tuple[tuple[int, ...], dict[str, Principal]]:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError as error:
        raise TokenFileError(
            f"the token file {path} cannot be read: {error.strerror}; set tokens_file to one"
        ) from None
    with os.fdopen(handle, "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode) or found.st_mode & _PRIVATE:
            raise TokenFileError(f"others may read or change {path}: chmod 600 {path}")
        if found.st_uid not in {0, os.geteuid()}:
            raise TokenFileError(f"{path} belongs to another user: make it this user's own")
        content = file.read(16 * 1024 * 1024)
    try:
        entries = TokenFile.decode(content).tokens
    except ValidationError as error:
        first = field_errors(error)[0]
        raise TokenFileError(f"{path}: {first.field}: {first.message}") from None
    return _identity(found), {
        entry.sha256: Principal(name=entry.name, role=entry.role, teams=frozenset(entry.teams))
        for entry in entries
    }
