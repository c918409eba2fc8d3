"""Profiles and their differences: a small shift is found, and equal tables raise no alarm."""

from __future__ import annotations

import os

import numpy as np
import pytest
from pydantic import ValidationError

from gangline_registry.core.profile import Profile, read_profile, write_profile
from gangline_registry.core.profile_difference import differences
from gangline_registry.core.profiling import profile_of
from gangline_registry.core.scores import BadScores
from gangline_schemas.gate_file import DriftLimits
from gangline_schemas.models import ColumnDrift

ROWS = 100_000
PAIRS = int(os.environ.get("GANGLINE_DRIFT_PAIRS", "10"))
"""1,000 by `make soak`; a table takes 0.15 s."""

LONGER = ["x" * (number % 90 + 9) + str(number) for number in range(1000)]


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


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ({"a": [1.0, 2.0] * 500}, {"b": [1.0, 2.0] * 500}, "gone"),
        ({"a": [1.0, 2.0] * 500}, {"a": ["x", "y"] * 500}, "was a number"),
        ({"a": [1.0, 2.0] * 500}, {"a": [1.0, None] * 500}, "missing values"),
        ({"a": ["x", "y"] * 500}, {"a": ["x", "x", "x", "y"] * 250}, "PSI"),
        ({"a": ["x", "y"] * 500}, {"a": ["z", "w"] * 500}, "PSI"),
        ({"a": [5.0] * 1000}, {"a": [6.0] * 1000}, "mean moved"),
        ({"a": [-1.0, 1.0] * 500}, {"a": [-3.0, 3.0] * 500}, "distribution moved"),
        ({"a": [f"{n:04}" for n in range(1000)]}, {"a": LONGER}, "mean moved"),
    ],
)
def test_each_kind_of_change_has_its_words(
    before: dict[str, list[object]], after: dict[str, list[object]], words: str
) -> None:
    found = compared(profile_of(before, 1000), profile_of(after, 1000))
    assert any(words in reason for one in found for reason in one.reasons), found


def test_a_profile_is_read_as_it_was_written_and_damage_is_seen() -> None:
    made = table(np.random.default_rng(4), 100)
    raw, digest = write_profile(made)
    assert read_profile(raw, digest) == made
    with pytest.raises(BadScores):
        read_profile(raw + b" ", digest)


def test_the_largest_numbers_are_compared_and_larger_ones_are_missing() -> None:
    low, high = (profile_of({"a": [sign * 1e24] * 9 + [1e30]}, 10) for sign in (-1, 1))
    (found,) = compared(low, high)
    assert (found.shift, found.ks, found.missing) == (1e6, 1.0, 0.0)
    sent = high.model_dump_json().replace("1e+24", "1e+300")
    with pytest.raises(ValidationError):
        Profile.model_validate_json(sent)


def test_a_profile_holds_no_text() -> None:
    secret = [f"my secret {number}" for number in range(5000)]
    raw, _ = write_profile(profile_of({"text": secret}, len(secret)))
    assert b"secret" not in raw
