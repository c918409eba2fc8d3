"""The security settings of librdkafka, in the table [kafka], as faust's client takes them."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field

from gangline_bus.kafka_token import MECHANISM, TOKEN_URL, TokenFile, TokenUnusable

_PROTOCOLS = {
    "plaintext": (False, False),
    "ssl": (True, False),
    "sasl_plaintext": (False, True),
    "sasl_ssl": (True, True),
}
"""Each with whether it is encrypted, and whether the client authenticates itself by SASL."""
_MECHANISMS = frozenset({"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", MECHANISM})
_KNOWN = frozenset(
    {
        "security.protocol", "sasl.mechanism", "sasl.mechanisms", "sasl.username", "sasl.password",
        "ssl.ca.location", "ssl.certificate.location", "ssl.key.location", "ssl.key.password",
        "ssl.endpoint.identification.algorithm", TOKEN_URL,
    }
)  # fmt: skip


class SecurityError(ValueError):
    """A setting that this client does not have; the message names it and the way out."""


@dataclass(frozen=True, slots=True)
class Security:
    """How to connect. `mechanism` None: without SASL; `tls` None: without TLS."""

    tls: ssl.SSLContext | None = None
    mechanism: str | None = None
    username: str = ""
    password: str = field(default="", repr=False)
    token: TokenFile | None = None


def security(settings: Mapping[str, str]) -> Security:
    """Read the settings and the files that they name. Raises SecurityError."""
    unknown = [
        name for name in settings if name.startswith(("sasl.", "ssl.")) and name not in _KNOWN
    ]
    if unknown:
        raise SecurityError(f"kafka: the live view has no {unknown[0]}; leave it out or the view")
    protocol = settings.get("security.protocol", "plaintext").lower()
    if protocol not in _PROTOCOLS:
        raise SecurityError(f"kafka: security.protocol must be one of {', '.join(_PROTOCOLS)}")
    encrypted, authenticated = _PROTOCOLS[protocol]
    tls = _tls(settings) if encrypted else None
    if not authenticated:
        return Security(tls)
    mechanism = settings.get("sasl.mechanism") or settings.get("sasl.mechanisms", "")
    if mechanism not in _MECHANISMS:
        wanted = ", ".join(sorted(_MECHANISMS))
        raise SecurityError(f"kafka: for the live view sasl.mechanism must be one of {wanted}")
    if mechanism == MECHANISM:
        return Security(tls, mechanism, token=_token(settings))
    username, password = settings.get("sasl.username", ""), settings.get("sasl.password", "")
    if not username or not password:
        raise SecurityError("kafka: sasl.username and sasl.password must be set")
    return Security(tls, mechanism, username, password)


def _token(settings: Mapping[str, str]) -> TokenFile:
    try:
        file = TokenFile.named(settings)
    except TokenUnusable as error:
        raise SecurityError(f"kafka: {error}") from None
    if file is None:
        raise SecurityError(f"kafka: for the live view {TOKEN_URL} must be file:///PATH of a token")
    return file


def _tls(settings: Mapping[str, str]) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=settings.get("ssl.ca.location"))
        if certificate := settings.get("ssl.certificate.location"):
            context.load_cert_chain(
                certificate, settings.get("ssl.key.location"), settings.get("ssl.key.password")
            )
    except (OSError, ValueError) as error:
        raise SecurityError(
            f"kafka: ssl.ca.location, ssl.certificate.location or ssl.key.location cannot be used "
            f"({type(error).__name__}): name PEM files that this process may read"
        ) from None
    if settings.get("ssl.endpoint.identification.algorithm", "https").lower() == "none":
        context.check_hostname = False
    return context
