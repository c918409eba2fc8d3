"""Profiles as objects in the store."""

from __future__ import annotations

import hashlib

from pydantic import ValidationError

from gangline_registry.core.scores import BadScores
from gangline_schemas.profile import Profile


def write_profile(profile: Profile) -> tuple[bytes, str]:
    """The bytes of a profile and their sha256 in hex."""
    raw = profile.model_dump_json().encode()
    return raw, hashlib.sha256(raw).hexdigest()


def read_profile(raw: bytes, digest: str) -> Profile:
    """The profile. Raises BadScores if the bytes are not those of the digest."""
    if hashlib.sha256(raw).hexdigest() != digest:
        raise BadScores("the object of a profile is damaged")
    try:
        return Profile.model_validate_json(raw, extra="ignore")
    except ValidationError:
        raise BadScores("a profile is of a version that this service does not know") from None
