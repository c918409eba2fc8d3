"""Makes the profile of a table, with numpy."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gangline_schemas.limits import SCORE_MAX
from gangline_schemas.profile import (
    CATEGORIES,
    QUANTILES,
    CategoryColumn,
    Column,
    NumberColumn,
    Profile,
    Sketch,
    TextColumn,
)

PROBABILITIES = np.linspace(0.0, 1.0, QUANTILES)
_MOST_DISTINCT = 1000
_VALUE_CHARS = 100


def profile_of(
    columns: Mapping[str, Sequence[Any] | np.ndarray], rows: int, share: float = 1.0
) -> Profile:
    """The profile of columns by name, each of `rows` values: numbers, texts, or None."""
    found = tuple(_column(name, columns[name]) for name in columns)
    return Profile(rows=rows, share=share, columns=found)


def sketch_of(values: np.ndarray) -> Sketch:
    """The sketch of numbers within `SCORE_MAX`."""
    if not len(values):
        return Sketch()
    quantiles = np.quantile(values, PROBABILITIES)
    return Sketch(
        mean=float(values.mean()),
        std=float(values.std()),
        quantiles=tuple(float(one) for one in quantiles),
    )


def category_of(name: str, counts: Mapping[str, int], missing: int = 0) -> CategoryColumn:
    """A column of texts by their counts."""
    common = Counter(counts).most_common(CATEGORIES)
    return CategoryColumn(
        name=name,
        missing=missing,
        counts={value[:_VALUE_CHARS]: count for value, count in common},
        other=sum(counts.values()) - sum(count for _, count in common),
        distinct=len(counts),
    )


def _column(name: str, values: Sequence[Any] | np.ndarray) -> Column:
    if isinstance(values, np.ndarray) and values.dtype.kind in "fiub":
        return _number(name, values)
    present = [one for one in values if one is not None]
    missing = len(values) - len(present)
    if all(isinstance(one, int | float) for one in present):
        column = _number(name, np.asarray([_float(one) for one in present]))
        return column.model_copy(update={"missing": column.missing + missing})
    texts = [_text(one) for one in present]
    counts = Counter(texts)
    if len(counts) <= min(_MOST_DISTINCT, max(20, len(texts) // 2)):
        return category_of(name, counts, missing)
    lengths = np.fromiter(map(len, texts), dtype=float, count=len(texts))
    return TextColumn(name=name, missing=missing, sketch=sketch_of(lengths))


def _number(name: str, values: np.ndarray) -> NumberColumn:
    numbers = values.astype(float, copy=False)
    known = numbers[np.abs(numbers) <= SCORE_MAX]
    return NumberColumn(name=name, missing=len(numbers) - len(known), sketch=sketch_of(known))


def _float(value: float) -> float:
    """A number as a float; infinite if it is beyond every float."""
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _text(value: Any) -> str:
    """A value as a text of Unicode: JSON may hold halves of characters."""
    return str(value).encode(errors="replace").decode()


def numbers_of(texts: Sequence[str | None]) -> list[float | None] | None:
    """Texts as numbers: NaN and infinite ones too, beside finite ones. None: they are texts."""
    try:
        found = [None if one is None else float(one) for one in texts]
    except ValueError:
        return None
    known = [one for one in found if one is not None]
    return found if not known or any(map(math.isfinite, known)) else None
