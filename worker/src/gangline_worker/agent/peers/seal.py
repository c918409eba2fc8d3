"""How two agents know each other: keyed hashes over a secret that agents alone can read.

The secret is an object of the store, made by the agent that needs it first. Agents have the
store's credentials; ranks, and users, have none. A token is good for one request of one attempt,
from one node to another; the answer's proof shows that no other program took the port.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from dataclasses import astuple, dataclass

SECRET_KEY = "agents/copies-secret"  # noqa: S105 -- where it is, not what


@dataclass(frozen=True, slots=True)
class PeerRequest:
    """One request: node `client` asks node `server` for `path`, for an attempt of its gang.

    `nonce` is the client's and new each time.
    """

    job_id: str
    attempt: int
    client: str
    server: str
    path: str
    nonce: str


def new_nonce() -> str:
    """A number that no request had before."""
    return secrets.token_hex(16)


def token(secret: bytes, request: PeerRequest) -> str:
    """The proof that an agent sent the request, in hex."""
    return _keyed(secret, "ask", request)


def proof(secret: bytes, request: PeerRequest) -> str:
    """The proof that an agent answers this very request, in hex."""
    return _keyed(secret, "answer", request)


def same(found: str, expected: str) -> bool:
    """Whether a token or proof is right, in a time that tells nothing."""
    return hmac.compare_digest(found.encode(), expected.encode())


def _keyed(secret: bytes, purpose: str, request: PeerRequest) -> str:
    message = json.dumps([purpose, *astuple(request)]).encode()
    return hmac.new(secret, message, hashlib.sha256).hexdigest()
