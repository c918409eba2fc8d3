"""Tokens of service accounts, as the API server of Kubernetes signs them."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from joserfc import jwt
from joserfc.jwk import RSAKey

ISSUER = "https://kubernetes.default.svc.cluster.local"
AUDIENCE = "kafka"
NAMESPACE = "gangline"


def account(part: str) -> str:
    """The principal of a part's service account, as the chart names it."""
    return f"system:serviceaccount:{NAMESPACE}:gangline-{part}"


@dataclass(frozen=True)
class ApiServer:
    """It signs tokens with a key of its own."""

    key: RSAKey = field(
        default_factory=lambda: RSAKey.generate_key(2048, {"alg": "RS256"}, auto_kid=True)
    )

    @property
    def jwks(self) -> str:
        """Its public keys, as at /openid/v1/jwks."""
        return json.dumps({"keys": [self.key.as_dict(private=False)]})

    def token(self, part: str, *, lifetime_s: float = 3600, **claims: Any) -> str:
        """A token of the part's account; `claims` replace those of a good one."""
        now = int(time.time())
        wanted = {
            "iss": ISSUER,
            "sub": account(part),
            "aud": [AUDIENCE],
            "iat": now,
            "nbf": now,
            "exp": now + int(lifetime_s),
            "kubernetes.io": {
                "namespace": NAMESPACE,
                "node": {"name": "node-1"},
                "pod": {"name": f"gangline-{part}-0"},
                "serviceaccount": {"name": f"gangline-{part}"},
            },
        }
        header = {"alg": "RS256", "kid": self.key.kid}
        return jwt.encode(header, wanted | claims, self.key)


def mount(path: Path, token: str) -> None:
    """Put a token there as kubelet does: whole, or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    new.write_text(token, "ascii")
    new.replace(path)
