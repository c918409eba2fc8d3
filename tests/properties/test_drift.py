"""Drift of drawn tables: a small shift is found, and equal tables raise no alarm."""

from __future__ import annotations

import os

import numpy as np
import pytest

from gangline_registry.core.profile_difference import differences
from gangline_registry.core.profiling import profile_of
from gangline_schemas.gate_file import DriftLimits
from gangline_schemas.models import ColumnDrift
from gangline_schemas.profile import Profile

ROWS = 100_000
PAIRS = int(os.environ.get("GANGLINE_DRIFT_PAIRS", "6"))
"""1,000 by `make soak`; a table takes 0.15 s."""


def table(random: np.random.Generator, rows: int = ROWS, **shifted: float) -> Profile:
    """20 columns of several kinds; `shifted` columns have their mean moved."""
    shares = np.arange(1, 51, dtype=float) / 1275
    columns: dict[str, object] = {f"n{i}": random.normal(size=rows) for i in range(10)}
    columns |= {f"e{i}": random.exponential(size=rows) for i in range(4)}
    columns |= {f"z{i}": random.poisson(1.2, rows).astype(float) for i in range(2)}
    columns |= {f"c{i}": [f"v{one}" for one in random.choice(50, rows, p=shares)] for i in range(4)}
    for name, shift in shifted.items():
        columns[name] = np.asarray(columns[name]) + shift
    return profile_of(columns, rows)  # type: ignore[arg-type]


def compared(one: Profile, other: Profile) -> list[ColumnDrift]:
    return differences(one, other, DriftLimits())


def test_a_tenth_of_a_standard_deviation_is_found_and_nothing_else() -> None:
    random = np.random.default_rng(1)
    found = compared(table(random), table(random, n3=0.1))
    assert [one.column for one in found] == ["n3"]
    assert found[0].shift == pytest.approx(0.1, abs=0.02)


def test_equal_tables_raise_no_alarm() -> None:
    random = np.random.default_rng(2)
    last = table(random)
    for _ in range(PAIRS):
        newest = table(random)
        assert compared(last, newest) == []
        last = newest


def test_small_equal_tables_raise_no_alarm() -> None:
    random = np.random.default_rng(3)
    tables = [table(random, rows) for rows in (30, 100, 300, 1000) * 5]
    assert [
        compared(one, other) for one in tables for other in tables if compared(one, other)
    ] == []
