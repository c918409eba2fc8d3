"""The profile of a table: sketches of its columns, so that snapshots are compared without data.

A number has its mean, its spread and 201 quantiles. A category has the counts of its most common
values. A text has the sketch of its lengths, and nothing of its content.
"""

from __future__ import annotations

import hashlib
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from gangline_registry.core.scores import BadScores
from gangline_schemas.base import Model
from gangline_schemas.limits import Count, Name, Score

QUANTILES = 201
CATEGORIES = 200
MOST_COLUMNS = 2000


class Sketch(Model):
    """How numbers are distributed. Without numbers there are no quantiles."""

    mean: Score = 0.0
    std: Score = Field(default=0.0, ge=0)
    quantiles: tuple[Score, ...] = Field(default=(), max_length=QUANTILES)


class NumberColumn(Model):
    """Numbers; NaN and numbers beyond 1e24 count as missing."""

    kind: Literal["number"] = "number"
    name: Name
    missing: Count = 0
    sketch: Sketch


class CategoryColumn(Model):
    """Texts of few values. `other`: rows of values beyond the most common ones."""

    kind: Literal["category"] = "category"
    name: Name
    missing: Count = 0
    counts: dict[str, Count] = Field(max_length=CATEGORIES)
    other: Count = 0
    distinct: Count


class TextColumn(Model):
    """Texts of many values, by their lengths in characters."""

    kind: Literal["text"] = "text"
    name: Name
    missing: Count = 0
    sketch: Sketch


Column = Annotated[NumberColumn | CategoryColumn | TextColumn, Field(discriminator="kind")]


class Profile(Model):
    """A table's columns."""

    version: Literal[1] = 1
    rows: Count
    columns: tuple[Column, ...] = Field(max_length=MOST_COLUMNS)


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
