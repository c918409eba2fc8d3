"""Columns of one INSERT as Arrow arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa

MILLISECONDS = pa.timestamp("ms", tz="UTC")


def millis(value: datetime) -> int:
    """Unix time in milliseconds."""
    return round(value.timestamp() * 1000)


def times(values: Sequence[int | None]) -> pa.Array:
    """Unix milliseconds as DateTime64(3)."""
    return pa.array(values, pa.int64()).cast(MILLISECONDS)


def fields(
    items: Sequence[object], types: Mapping[str, pa.DataType], absent: object = None
) -> dict[str, pa.Array]:
    """Columns of the attributes that `types` names; `absent` where an item has none.

    Times are given as datetimes, and become DateTime64(3).
    """
    found = {}
    for name, kind in types.items():
        values: list[Any] = [getattr(item, name, absent) for item in items]
        if kind == MILLISECONDS:
            found[name] = times([None if at is None else millis(at) for at in values])
        else:
            found[name] = pa.array(values, kind)
    return found


def dictionary(values: Sequence[str]) -> pa.Array:
    """Strings of which few differ, for a LowCardinality column."""
    return pa.array(values, pa.string()).dictionary_encode()


def ingested(at: datetime, length: int) -> pa.Array:
    """The column that keeps an INSERT in one partition."""
    seconds = np.full(length, int(at.timestamp()), dtype=np.int64)
    return pa.array(seconds).cast(pa.timestamp("s", tz="UTC"))
