"""Talks to the OpenID provider, and judges its ID tokens with joserfc.

An ID token counts only if its signature is by a key of the provider, and by an algorithm with
public keys. It must be for this client, of this issuer, of this sign-in (nonce), and not expired.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import math
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

import aiohttp
from joserfc import jwt
from joserfc.errors import InvalidKeyIdError, JoseError
from joserfc.jwk import KeySet

from gangline_gateway.oidc.settings import OidcSettings, check_url

ALGORITHMS = [
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "Ed25519",
    "EdDSA",
]  # fmt: skip
"""With public keys: never "none", never HS*, by which the public key would be the secret."""
DEVICE_GRANT = "urn:ietf:params:oauth:grant-type:device_code"
LEEWAY_S = 30
MOST_BYTES = 1 << 20
"""Of an answer."""
_FOUND_S = 3600.0
_KEYS_AGAIN_S = 30.0
_AWAY_S = 5.0
_KEY_TYPES = frozenset({"RSA", "EC", "OKP"})


def age_s(since_s: float, now_s: float) -> float:
    """The time since then; also of a clock that was ahead and is put back."""
    return abs(now_s - since_s)


class ProviderAwayError(Exception):
    """The provider does not answer, or not as one."""


class ProviderRefusedError(Exception):
    """The provider said no. `code` is OAuth's."""

    def __init__(self, code: str, description: str = "") -> None:
        super().__init__(f"{code}: {description}" if description else code)
        self.code = code


class TokenRefusedError(Exception):
    """An ID token that is not for us, or no longer."""


@dataclass(frozen=True, slots=True)
class Granted:
    """The answer of the token endpoint."""

    access_token: str
    refresh_token: str
    id_token: str


class Provider:
    """One provider. Belongs to one event loop."""

    def __init__(
        self, settings: OidcSettings, secret: str, clock: Callable[[], float] = time.time
    ) -> None:
        self.settings = settings
        self._secret = secret
        self._clock = clock
        self._client: aiohttp.ClientSession | None = None
        self._place: tuple[float, dict[str, Any]] | None = None
        self._keys: tuple[float, KeySet] | None = None
        self._failed_s = -math.inf
        self._looking = asyncio.Lock()

    async def authorization_url(self, verifier: str, **asked: str) -> str:
        """Where a browser signs in. `exchange` will need the verifier."""
        place = await self._endpoint("authorization_endpoint")
        fields = {
            "response_type": "code",
            "client_id": self.settings.client_id,
            "scope": " ".join(self.settings.scopes),
            **asked,
            **_challenge(verifier),
        }
        return f"{place}{'&' if '?' in place else '?'}{urlencode(fields)}"

    async def exchange(self, code: str, redirect_uri: str, verifier: str) -> Granted:
        """The tokens of a code. Raises ProviderRefusedError for one that was used."""
        return await self._grant(
            grant_type="authorization_code",
            code=code,
            redirect_uri=redirect_uri,
            code_verifier=verifier,
        )

    async def refresh(self, token: str) -> Granted:
        """New tokens. Raises ProviderRefusedError when the session has ended."""
        return await self._grant(grant_type="refresh_token", refresh_token=token)

    async def begin_device(self, verifier: str) -> dict[str, Any]:
        """The codes of a device flow. Raises ProviderRefusedError where it offers none.

        Keycloak asks for a PKCE challenge here too; other providers ignore it.
        """
        place = await self._endpoint("device_authorization_endpoint")
        scope = " ".join(self.settings.scopes)
        found = await self._post(place, scope=scope, **_challenge(verifier))
        if not all(
            isinstance(found.get(name), str)
            for name in ("device_code", "user_code", "verification_uri")
        ):
            raise ProviderAwayError("the answer about a device has no codes")
        return found

    async def poll_device(self, device_code: str, verifier: str) -> Granted:
        """The tokens of a device. Raises ProviderRefusedError: authorization_pending and others."""
        return await self._grant(
            grant_type=DEVICE_GRANT, device_code=device_code, code_verifier=verifier
        )

    async def revoke(self, token: str) -> None:
        """The provider ends a refresh token, if it offers that."""
        document = await self._document()
        if isinstance(place := document.get("revocation_endpoint"), str):
            check_url(place)
            await self._post(place, token=token)

    async def claims(self, granted: Granted, nonce: str | None) -> dict[str, Any]:
        """The claims about a person: those of the ID token, and those of userinfo above them."""
        found = await self.judge(granted.id_token, nonce)
        newer = await self.userinfo(granted.access_token)
        if newer is not None and newer.get("sub") != found["sub"]:
            raise TokenRefusedError("userinfo is about another person")
        return {**found, **(newer or {})}

    async def userinfo(self, access_token: str) -> dict[str, Any] | None:
        """The claims of a person now; None where the provider offers no userinfo."""
        document = await self._document()
        place = document.get("userinfo_endpoint")
        if not isinstance(place, str):
            return None
        check_url(place)
        return await self._ask("GET", place, headers={"Authorization": f"Bearer {access_token}"})

    async def judge(self, token: str, nonce: str | None) -> dict[str, Any]:
        """The claims of an ID token. `nonce`: None: none was sent. Raises TokenRefusedError."""
        try:
            keys = await self._known_keys()
            try:
                found = jwt.decode(token, keys, algorithms=ALGORITHMS)
            except InvalidKeyIdError:
                keys = await self._known_keys(again=True)
                found = jwt.decode(token, keys, algorithms=ALGORITHMS)
        except (JoseError, ValueError) as error:
            raise TokenRefusedError(f"{type(error).__name__}: {error}") from None
        _check_claims(found.claims, self.settings, nonce, self._clock())
        return found.claims

    async def close(self) -> None:
        """Close its connections."""
        if self._client is not None:
            await self._client.close()

    async def _grant(self, **fields: str) -> Granted:
        found = await self._post(await self._endpoint("token_endpoint"), **fields)
        access = found.get("access_token")
        if not isinstance(access, str):
            raise ProviderAwayError("the answer of the token endpoint has no access_token")
        return Granted(
            access,
            str(found.get("refresh_token") or fields.get("refresh_token", "")),
            str(found.get("id_token") or ""),
        )

    async def _post(self, place: str, **fields: str) -> dict[str, Any]:
        """A request by this client. Basic authentication is what each provider must offer."""
        headers, name = {}, self.settings.client_id
        if self._secret:
            login = f"{quote(name, safe='')}:{quote(self._secret, safe='')}".encode()
            headers["Authorization"] = f"Basic {base64.b64encode(login).decode()}"
        return await self._ask("POST", place, headers=headers, data={"client_id": name, **fields})

    async def _endpoint(self, name: str) -> str:
        place = (await self._document()).get(name)
        if not isinstance(place, str):
            raise ProviderRefusedError("unsupported", f"the provider has no {name}")
        check_url(place)
        return place

    async def _document(self) -> dict[str, Any]:
        """The provider's own description, at most an hour old."""
        async with self._looking:
            if self._place is None or self._age_s(self._place[0]) > _FOUND_S:
                issuer = self.settings.issuer
                url = f"{issuer.rstrip('/')}/.well-known/openid-configuration"
                # Else all would wait, one after the other.
                if self._age_s(self._failed_s) < _AWAY_S:
                    raise ProviderAwayError(f"{url}: did not answer a moment ago")
                try:
                    found = await self._ask("GET", url)
                except ProviderAwayError:
                    self._failed_s = self._clock()
                    raise
                if found.get("issuer") != issuer:
                    raise ProviderAwayError(f"{url} is of the issuer {found.get('issuer')!r}")
                self._place = self._clock(), found
            return self._place[1]

    async def _known_keys(self, *, again: bool = False) -> KeySet:
        """The provider's public keys; asked for again when one is unknown, not too often."""
        place = await self._endpoint("jwks_uri")
        async with self._looking:
            old_s = _FOUND_S + 1 if self._keys is None else self._age_s(self._keys[0])
            if self._keys is None or old_s > (_KEYS_AGAIN_S if again else _FOUND_S):
                found = await self._ask("GET", place)
                self._keys = self._clock(), _keys(found)
            return self._keys[1]

    def _age_s(self, since_s: float) -> float:
        return age_s(since_s, self._clock())

    async def _ask(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        data: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        try:
            async with self._session().request(
                method, url, headers={"Accept": "application/json", **(headers or {})}, data=data,
                allow_redirects=False,
            ) as answer:  # fmt: skip
                content = await _content(answer)
                found = json.loads(content) if content else {}
                status = answer.status
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise ProviderAwayError(f"{url}: {type(error).__name__}") from None
        if 400 <= status < 500 and status != 429:
            said = found if isinstance(found, dict) else {}
            raise ProviderRefusedError(
                str(said.get("error", f"status {status}"))[:100],
                str(said.get("error_description", ""))[:300],
            )
        if status >= 300 or not isinstance(found, dict):
            raise ProviderAwayError(f"{url}: status {status}")
        return found

    def _session(self) -> aiohttp.ClientSession:
        if self._client is None:
            file = self.settings.ca_file
            context = ssl.create_default_context(cafile=str(file) if file else None)
            self._client = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(ssl=context),
                timeout=aiohttp.ClientTimeout(total=10),
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return self._client


async def _content(answer: aiohttp.ClientResponse) -> bytes:
    """The whole body. Raises ProviderAwayError if it is too large."""
    try:
        await answer.content.readexactly(MOST_BYTES + 1)
    except asyncio.IncompleteReadError as whole:
        return whole.partial
    raise ProviderAwayError(f"{answer.url}: the answer is above {MOST_BYTES:,} bytes")


def _challenge(verifier: str) -> dict[str, str]:
    """The fields of PKCE (RFC 7636) for a verifier."""
    digest = hashlib.sha256(verifier.encode()).digest()
    challenge = base64.urlsafe_b64encode(digest).decode().rstrip("=")
    return {"code_challenge": challenge, "code_challenge_method": "S256"}


def _keys(found: Mapping[str, Any]) -> KeySet:
    """The keys for signatures, without secrets that a document may not hold."""
    given = found.get("keys")
    keys: Any = [
        key
        for key in (given if isinstance(given, list) else [])
        if isinstance(key, dict) and key.get("kty") in _KEY_TYPES and key.get("use") != "enc"
    ]
    try:
        return KeySet.import_key_set({"keys": keys})
    except (JoseError, ValueError) as error:
        raise ProviderAwayError(f"the provider's keys cannot be read: {error}") from None


def _check_claims(
    claims: dict[str, Any], settings: OidcSettings, nonce: str | None, now_s: float
) -> None:
    client = settings.client_id
    options: dict[str, Any] = {
        "iss": {"essential": True, "value": settings.issuer},
        "aud": {"essential": True, "value": client},
        "exp": {"essential": True},
        "iat": {"essential": True},
        "sub": {"essential": True},
    }
    if nonce is not None:
        options["nonce"] = {"essential": True, "value": nonce}
    try:
        jwt.JWTClaimsRegistry(now=int(now_s), leeway=LEEWAY_S, **options).validate(claims)
    except JoseError as error:
        raise TokenRefusedError(f"{type(error).__name__}: {error}") from None
    several = isinstance(claims["aud"], list) and len(claims["aud"]) > 1
    if (several or "azp" in claims) and claims.get("azp") != client:
        raise TokenRefusedError("it was issued to another client")
