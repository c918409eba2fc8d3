"""The profile of a table: sketches of its columns, so that snapshots are compared without data.

A number has its mean, its spread and 201 quantiles. A category has the counts of its most common
values. A text has the sketch of its lengths, and nothing of its content.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from gangline_schemas.base import Model
from gangline_schemas.limits import Count, Name, Score

QUANTILES = 201
CATEGORIES = 200
MOST_COLUMNS = 2000
_Value = Annotated[str, StringConstraints(max_length=256)]


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
    counts: dict[_Value, Count] = Field(max_length=CATEGORIES)
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
    share: float = Field(
        default=1.0, gt=0, le=1, description="Of the data that was read: below 1, a sample."
    )
    columns: tuple[Column, ...] = Field(max_length=MOST_COLUMNS)
