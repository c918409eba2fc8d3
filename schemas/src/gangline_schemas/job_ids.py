"""Ids of new jobs: the job's name and ten hex digits, so that people recognize the job."""

from __future__ import annotations

import secrets

from gangline_schemas.base import NAME_CHARS
from gangline_schemas.envelope import derived_id

SUFFIX_CHARS = 10


def suffix_of_key(team: str, key: str) -> str:
    """The suffix for an idempotency key of a team, always the same one."""
    return derived_id("idempotency", team, key).replace("-", "")[-SUFFIX_CHARS:]


def new_suffix() -> str:
    """A random suffix."""
    return secrets.token_hex(SUFFIX_CHARS // 2)


def job_id(name: str, suffix: str) -> str:
    """A valid id of at most 63 characters."""
    return f"{name[: NAME_CHARS - 1 - len(suffix)].rstrip('-')}-{suffix}"


def suffix_of(known_id: str) -> str:
    """The last part of an id. It has a meaning only for ids that the gateway made."""
    return known_id.rpartition("-")[2]
