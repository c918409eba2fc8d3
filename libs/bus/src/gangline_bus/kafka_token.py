"""A client's token in a file: SASL OAUTHBEARER with a token that another process keeps fresh.

On Kubernetes this is kubelet. It writes the token of the pod's service account, and replaces it
before it expires. The settings name the file as those of Kafka's Java clients do:

    "sasl.mechanism" = "OAUTHBEARER"
    "sasl.oauthbearer.token.endpoint.url" = "file:///run/gangline/kafka/token"

The token is a secret: no message here has a part of it. Its claims are read and not verified, which
is the broker's work.
"""

from __future__ import annotations

import binascii
import json
import re
import time
from base64 import urlsafe_b64decode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import structlog

from gangline_bus.ports import BusUnavailable

log = structlog.get_logger(__name__)

TOKEN_URL = "sasl.oauthbearer.token.endpoint.url"  # noqa: S105 - the name of a setting
MECHANISM = "OAUTHBEARER"
LOOK_S = 60.0
"""A client reads the file again after 80 % of this time, or of the token's rest if that is less."""
_REPORT_S = 10.0
"""Clients try again more often than a file without a good token needs to be reported."""
_MAX_BYTES = 64 << 10
_LAST_S = 1e11
"""Later times are no seconds since 1970."""
_JWT = re.compile(r"[\w-]+\.([\w-]+)\.[\w-]+", re.ASCII)
_WAY_OUT = "on Kubernetes mount a projected serviceAccountToken there (docs/guides/kubernetes.md)"


class TokenUnusable(BusUnavailable):
    """The file has no good token: the message names the file, the setting and the way out."""


@dataclass(frozen=True, slots=True)
class Token:
    """A token, and what it says of itself. `expires_s`: seconds since 1970."""

    text: str = field(repr=False)
    principal: str
    issuer: str
    audience: str
    expires_s: float

    def __str__(self) -> str:
        until = datetime.fromtimestamp(self.expires_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return f"audience {self.audience}, issuer {self.issuer}, valid until {until}"


class TokenFile:
    """The file of a client's token. Every method may be called from any thread."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self.path = path
        self._clock = clock
        self._given: Token | None = None
        self._reported_s = float("-inf")

    @classmethod
    def named(cls, settings: Mapping[str, Any]) -> TokenFile | None:
        """The file that the settings name; None if they name none. Raises TokenUnusable."""
        url = str(settings.get(TOKEN_URL, ""))
        mechanism = settings.get("sasl.mechanism") or settings.get("sasl.mechanisms")
        parts = urlsplit(url)
        if str(mechanism).upper() != MECHANISM or parts.scheme != "file":
            return None
        path = Path(unquote(parts.path))
        if parts.netloc not in {"", "localhost"} or not path.is_absolute():
            raise TokenUnusable(f"{TOKEN_URL} must be file:///PATH, with an absolute path")
        return cls(path)

    @property
    def given(self) -> Token | None:
        """The token that was last given to a client."""
        return self._given

    def read(self) -> Token:
        """The present token. Raises TokenUnusable."""
        try:
            with self.path.open("rb") as file:
                content = file.read(_MAX_BYTES + 1)
        except OSError as error:
            raise self._unusable(f"cannot be read ({error.strerror})") from None
        token = self._parsed(content)
        if token.expires_s <= self._clock():
            raise self._unusable(f"has expired: {token}")
        return token

    def give(self, _config: str = "") -> tuple[str, float, str, dict[str, str]]:
        """Librdkafka's `oauth_cb`: token, expiry, principal, extensions. Raises TokenUnusable.

        After an error the client keeps its last token, and asks again 10 seconds later. It gets
        an early expiry, so that it soon has a token that was replaced.
        """
        try:
            token = self.read()
        except TokenUnusable as error:
            self.report(error)
            raise
        self._given = token
        return token.text, min(token.expires_s, self._clock() + LOOK_S), token.principal, {}

    def report(self, error: TokenUnusable) -> None:
        """Log it, unless an error was logged a moment ago."""
        now = self._clock()
        if now - self._reported_s >= _REPORT_S:
            self._reported_s = now
            log.warning("kafka.token_unusable", error=str(error))

    def _parsed(self, content: bytes) -> Token:
        text = content.decode("ascii", "replace").strip()
        found = _JWT.fullmatch(text)
        if not text:
            raise self._unusable("is empty")
        if found is None or len(content) > _MAX_BYTES:
            raise self._unusable("holds no JSON Web Token")
        try:
            claims = json.loads(urlsafe_b64decode(found[1] + "=" * (-len(found[1]) % 4)))
        except (binascii.Error, ValueError, RecursionError):
            claims = None
        if not isinstance(claims, dict):
            raise self._unusable("holds no JSON Web Token")
        expires, subject = claims.get("exp"), claims.get("sub")
        if not isinstance(subject, str) or not subject:
            raise self._unusable("holds a token without the claim `sub`")
        if isinstance(expires, bool) or not isinstance(expires, int | float):
            raise self._unusable("holds a token without the claim `exp`")
        if not 0 < expires < _LAST_S:
            raise self._unusable("holds a token whose claim `exp` is no time")
        audience = claims.get("aud")
        named = audience if isinstance(audience, list) else [audience or "none"]
        return Token(
            text,
            subject,
            str(claims.get("iss") or "none"),
            ", ".join(str(each) for each in named),
            float(expires),
        )

    def _unusable(self, why: str) -> TokenUnusable:
        return TokenUnusable(
            f"the token file {self.path} {why}; the setting {TOKEN_URL} names it; {_WAY_OUT}"
        )


def client_settings(settings: Mapping[str, Any], file: TokenFile | None) -> dict[str, Any]:
    """The settings as a client takes them; `file` gives it its tokens."""
    if file is None:
        return dict(settings)
    own = {name: value for name, value in settings.items() if name != TOKEN_URL}
    return {**own, "oauth_cb": file.give}
