"""Sign-ins at the provider: who signed in, and whether the provider still says so.

1. `begin` makes a random token for a person whom the provider named. A browser's session or the
   command line holds it; it is stored as a hash.
2. `authenticate` gives the person's rights. Once they are `CHECK_S` old, it first asks the provider
   again: by the refresh token and userinfo. If the person was removed, the sign-in ends. If the
   groups have changed, so have the rights.
3. While the provider is away, rights count until they are `TRUST_S` old. Then requests get 503.

The provider's tokens are encrypted by the sign-in's own token, so neither the file nor the memory
gives them away. With a file sign-ins survive a restart of the gateway, of this gateway alone.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import structlog
from pydantic import Field, ValidationError

from gangline_gateway.oidc.provider import (
    Granted,
    Provider,
    ProviderAwayError,
    ProviderRefusedError,
    TokenRefusedError,
    age_s,
)
from gangline_gateway.problems import ProblemError, unavailable
from gangline_gateway.sealed import seal, unseal
from gangline_schemas.access import MOST_DAYS
from gangline_schemas.base import Model
from gangline_service.private_file import write_private
from gangline_service.tokens import Principal, new_token, token_hash

log = structlog.get_logger(__name__)

PREFIX = "gl_in_"
CHECK_S, TRUST_S = 240.0, 300.0
MOST = 10_000
MOST_OF_PERSON = 100
WRITE_S = 5.0
_DAY_S = 86_400.0
_RETRY_S = 10.0


class Person(Model):
    """A person, as the provider last described them."""

    sub: str
    groups: tuple[str, ...]
    """Of those that had rights here; what they allow is read from the settings of now."""
    since_s: float
    """When this person first had this name here."""
    seen_s: float


class Login(Model):
    """One sign-in."""

    sub: str
    name: str
    until_s: float
    checked_s: float
    sealed: str
    """The provider's tokens, encrypted by the sign-in's token."""


class Kept(Model):
    """The file."""

    people: dict[str, Person] = Field(default_factory=dict)
    logins: dict[str, Login] = Field(default_factory=dict)


class NoRightsError(Exception):
    """The provider knows the person, and nothing here is allowed to them. The message says why."""


@dataclass(slots=True)
class _Tries:
    """The lock of a sign-in's check, and when the provider last did not answer."""

    lock: asyncio.Lock
    failed_s: float = 0.0


class Logins:
    """Belongs to one event loop."""

    def __init__(
        self,
        provider: Provider,
        file: Path | None = None,
        taken: Callable[[str], bool] = lambda _: False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`taken`: whether a name is one of the file of tokens: no person may sign in by it."""
        self.provider = provider
        self._file, self._taken, self._clock = file, taken, clock
        self._kept = _read(file)
        self._tries: dict[str, _Tries] = {}
        self._checks: set[asyncio.Task[None]] = set()
        self._later: asyncio.TimerHandle | None = None

    async def begin(self, granted: Granted, nonce: str | None) -> tuple[str, Principal]:
        """The token of a new sign-in, and the rights of its person.

        Raises NoRightsError, TokenRefusedError, ProviderAwayError and ProviderRefusedError.
        """
        claims = await self.provider.claims(granted, nonce)
        principal = self._learn(claims)
        token = new_token(PREFIX)
        now_s = self._clock()
        self._make_room(principal.name, now_s)
        self._kept.logins[token_hash(token)] = Login(
            sub=claims["sub"],
            name=principal.name,
            until_s=now_s + self.provider.settings.session_hours * 3600,
            checked_s=now_s,
            sealed=_seal(token, granted),
        )
        self._write()
        return token, principal

    async def authenticate(self, token: str) -> Principal | None:
        """The rights of a sign-in; None: it has ended. Raises a 503 problem, as above."""
        key, now_s = token_hash(token), self._clock()
        login = self._kept.logins.get(key)
        if login is not None and now_s >= login.until_s:
            self._forget(key)
        elif login is not None and age_s(login.checked_s, now_s) >= CHECK_S:
            tries = self._tries.setdefault(key, _Tries(asyncio.Lock()))
            check = asyncio.create_task(self._check_alone(key, token, tries))
            self._checks.add(check)
            check.add_done_callback(self._checks.discard)
            await asyncio.shield(check)  # a request that ends loses no refresh token
        login = self._kept.logins.get(key)
        if login is None:
            return None
        person = self._kept.people.get(login.name)
        if person is None or person.sub != login.sub:
            return None
        return self.provider.settings.rights(login.name, person.groups)

    async def end(self, token: str) -> None:
        """End a sign-in, here and at the provider if it offers that."""
        login = self._kept.logins.get(token_hash(token))
        if login is None:
            return
        self._forget(token_hash(token))
        refresh = _opened(token, login).get("refresh", "")
        if refresh:
            try:
                await self.provider.revoke(refresh)
            except (ProviderAwayError, ProviderRefusedError, ValueError) as error:
                log.info("the provider did not take a sign-out", reason=str(error))

    def known(self, name: str, made_at: datetime) -> Principal | None:
        """The rights of a person for a personal access token that was made then.

        None for one who did not sign in for long, or has the name since later, or whose name is in
        the file of tokens now.
        """
        person = self._kept.people.get(name)
        if person is None or made_at.timestamp() < person.since_s or self._taken(name):
            return None
        silent_s = self._clock() - person.seen_s
        settings = self.provider.settings
        if silent_s >= settings.token_days * _DAY_S:
            return None
        return settings.rights(name, person.groups)

    def _learn(self, claims: dict[str, Any]) -> Principal:
        """Keep the claims about a person. Raises NoRightsError."""
        settings, sub, now_s = self.provider.settings, str(claims["sub"]), self._clock()
        name = claims.get(settings.user_claim)
        if not isinstance(name, str) or not 1 <= len(name) <= 256 or not name.isprintable():
            raise NoRightsError(f"the provider gave no name in the claim {settings.user_claim}")
        if self._taken(name):
            raise NoRightsError(f"the name {name} is one of the file of tokens")
        before = self._kept.people.get(name)
        if before is None or before.sub != sub:
            self._forget_names_of(sub)
        groups = settings.groups_of(claims)
        rights = settings.rights(name, groups)
        if rights is None:
            if before is not None and before.sub == sub:
                del self._kept.people[name]
            self._write()
            raise NoRightsError(
                f"no group of {name} has rights here: an operator can give some to a group in the "
                f"file of the sign-in (claim {settings.groups_claim})"
            )
        same = before is not None and before.sub == sub
        since_s = before.since_s if same and before is not None else now_s
        person = Person(sub=sub, groups=groups, since_s=since_s, seen_s=now_s)
        self._kept.people[name] = person
        return rights

    def _forget_names_of(self, sub: str) -> None:
        """The provider gave a person another name: no check would change the old one's rights."""
        for name in [name for name, one in self._kept.people.items() if one.sub == sub]:
            log.info("a person has another name; the old one has no rights", user=name)
            del self._kept.people[name]

    async def _check_alone(self, key: str, token: str, tries: _Tries) -> None:
        async with tries.lock:
            await self._check(key, token, tries)

    async def _check(self, key: str, token: str, tries: _Tries) -> None:
        """Ask the provider about a sign-in, unless another request has just done so."""
        login, now_s = self._kept.logins.get(key), self._clock()
        if login is None or age_s(login.checked_s, now_s) < CHECK_S:
            return
        trusted = age_s(login.checked_s, now_s) < TRUST_S
        if age_s(tries.failed_s, now_s) < _RETRY_S:
            if trusted:
                return
            raise _away()
        try:
            claims = await self._claims(key, token, login)
            if claims.get("sub") != login.sub:
                raise TokenRefusedError("it is about another person")
            name = self._learn(claims).name
            if name != login.name:
                raise TokenRefusedError(f"its person has the name {name} now")
        except ProviderAwayError as error:
            tries.failed_s = self._clock()  # it may have kept us waiting
            log.warning("the provider does not answer", reason=str(error))
            if not trusted:
                raise _away() from None
            return
        except (ProviderRefusedError, TokenRefusedError, NoRightsError) as error:
            log.info("sign-in ended", user=login.name, reason=str(error))
            self._forget(key)
            return
        self._change(key, checked_s=now_s)

    async def _claims(self, key: str, token: str, login: Login) -> dict[str, Any]:
        """The claims about a person now. Raises ProviderRefusedError."""
        held = _opened(token, login)
        access, refresh = held.get("access", ""), held.get("refresh", "")
        if refresh:
            granted = await self.provider.refresh(refresh)
            # At once: many providers take a refresh token a single time.
            self._change(key, sealed=_seal(token, granted))
            if granted.id_token:  # some providers name groups there alone
                return await self.provider.claims(granted, None)
            access = granted.access_token
        claims = await self.provider.userinfo(access)
        if claims is None:
            raise ProviderRefusedError("unsupported", "it gives no ID token and no userinfo")
        return claims

    def _change(self, key: str, **changes: Any) -> None:
        """Change a sign-in, unless it was ended meanwhile."""
        login = self._kept.logins.get(key)
        if login is not None:
            self._kept.logins[key] = login.model_copy(update=changes)
            self._write_soon()

    def _make_room(self, name: str, now_s: float) -> None:
        logins, people = self._kept.logins, self._kept.people
        oldest_s = now_s - MOST_DAYS * _DAY_S  # all tokens of earlier people have expired
        for silent in [one for one, person in people.items() if person.seen_s < oldest_s]:
            del people[silent]
        for key in [key for key, one in logins.items() if one.until_s <= now_s]:
            self._drop(key)
        own = [key for key, one in logins.items() if one.name == name]
        for key in own[: max(0, len(own) - MOST_OF_PERSON + 1)]:
            self._drop(key)
        if len(logins) >= MOST:
            self._drop(next(iter(logins)))

    def _drop(self, key: str) -> None:
        self._kept.logins.pop(key, None)
        self._tries.pop(key, None)

    def _forget(self, key: str) -> None:
        self._drop(key)
        self._write()

    def close(self) -> None:
        """Write what waits to be written. The event loop has ended."""
        if self._later is not None:
            self._write()

    def _write_soon(self) -> None:
        """After checks, of which there are many: 1,000 sign-ins take 25 ms of the event loop."""
        if self._later is None:
            self._later = asyncio.get_running_loop().call_later(WRITE_S, self._write)

    def _write(self) -> None:
        if self._later is not None:
            self._later.cancel()
            self._later = None
        if self._file is None:
            return
        try:
            write_private(self._file, self._kept.encode())
        except OSError as error:
            log.warning("sign-ins not written", file=str(self._file), reason=str(error))


def _away() -> ProblemError:
    return unavailable(
        "provider-away", "the sign-in cannot be checked: its provider does not answer"
    )


def _read(file: Path | None) -> Kept:
    if file is None or not file.exists():
        return Kept()
    try:
        return Kept.decode(file.read_bytes())
    except (OSError, ValidationError) as error:
        log.warning("sign-ins not read; users sign in again", reason=type(error).__name__)
        return Kept()


def _seal(token: str, granted: Granted) -> str:
    held = {"access": granted.access_token, "refresh": granted.refresh_token}
    return seal(json.dumps(held), token)


def _opened(token: str, login: Login) -> dict[str, str]:
    """The provider's tokens; {} if the file was changed."""
    found: dict[str, str] = json.loads(unseal(login.sealed, token) or "{}")
    return found
