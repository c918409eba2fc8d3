"""Ids of new jobs: the name and ten hex digits, so that a person recognises the job."""

from __future__ import annotations

import secrets

from gangline_schemas.envelope import derived_id

SUFFIX_CHARS = 10
_MAX_ID = 63


def suffix_of_key(team: str, key: str) -> str:
    """The same for the same idempotency key of one team."""
    return derived_id("idempotency", team, key).replace("-", "")[-SUFFIX_CHARS:]


def new_suffix() -> str:
    """One that nobody else has."""
    return secrets.token_hex(SUFFIX_CHARS // 2)


def job_id(name: str, suffix: str) -> str:
    """A valid id of at most 63 characters."""
    return f"{name[: _MAX_ID - 1 - len(suffix)].rstrip('-')}-{suffix}"


def suffix_of(known_id: str) -> str:
    """The last part of an id; of ids made elsewhere it means nothing."""
    return known_id.rpartition("-")[2]
