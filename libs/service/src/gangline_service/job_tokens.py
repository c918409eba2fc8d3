"""Tokens by which the ranks of one attempt of a job reach MLflow through the gateway.

A node agent makes them and the gateway checks them, both with a secret that lies in the object
store. A token names its job and attempt, and nothing else can be made of it. Whether that attempt
still runs is the gateway's to decide.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from dataclasses import dataclass

SECRET_KEY = "platform/job-tokens-secret"  # noqa: S105 -- where it is, not what
_PREFIX = "gl_job_"
"""Logs and job files are searched for its beginning, as for that of users' tokens."""
_SHAPE = re.compile(
    rf"{_PREFIX}([A-Za-z0-9_-]{{43}})-([1-9][0-9]{{0,9}})-([a-z0-9](?:[a-z0-9-]{{0,61}}[a-z0-9])?)",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class JobAttempt:
    """The attempt that a token stands for."""

    job_id: str
    attempt: int


def make_token(secret: bytes, of: JobAttempt) -> str:
    """The token of an attempt: always the same one."""
    return f"{_PREFIX}{_proof(secret, of)}-{of.attempt}-{of.job_id}"


def is_job_token(token: str) -> bool:
    """Whether a text has the form of such a token, which no user's token has."""
    return _SHAPE.fullmatch(token) is not None


def read_token(secret: bytes, token: str) -> JobAttempt | None:
    """The attempt of a token; None: it was not made with this secret."""
    found = _SHAPE.fullmatch(token)
    if found is None:
        return None
    of = JobAttempt(found[3], int(found[2]))
    return of if hmac.compare_digest(found[1], _proof(secret, of)) else None


def _proof(secret: bytes, of: JobAttempt) -> str:
    message = f"mlflow\x1f{of.job_id}\x1f{of.attempt}".encode()
    digest = hmac.new(secret, message, hashlib.sha256).digest()
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")
