"""Profiles and their differences: a small shift is found, and equal tables raise no alarm."""

from __future__ import annotations

import numpy as np
import pytest
from pydantic import ValidationError

from gangline_registry.core.profile import read_profile, write_profile
from gangline_registry.core.profile_difference import differences
from gangline_registry.core.profiling import profile_of
from gangline_registry.core.scores import BadScores
from gangline_schemas.gate_file import DriftLimits
from gangline_schemas.profile import Profile

LONGER = ["x" * (number % 90 + 9) + str(number) for number in range(1000)]


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
    found = differences(profile_of(before, 1000), profile_of(after, 1000), DriftLimits())
    assert any(words in reason for one in found for reason in one.reasons), found


def test_a_profile_is_read_as_it_was_written_and_damage_is_seen() -> None:
    made = profile_of({"a": np.random.default_rng(4).normal(size=100), "b": ["x", "y"] * 50}, 100)
    raw, digest = write_profile(made)
    assert read_profile(raw, digest) == made
    with pytest.raises(BadScores):
        read_profile(raw + b" ", digest)


def test_the_largest_numbers_are_compared_and_larger_ones_are_missing() -> None:
    low, high = (profile_of({"a": [sign * 1e24] * 9 + [1e30]}, 10) for sign in (-1, 1))
    (found,) = differences(low, high, DriftLimits())
    assert (found.shift, found.ks, found.missing) == (1e6, 1.0, 0.0)
    sent = high.model_dump_json().replace("1e+24", "1e+300")
    with pytest.raises(ValidationError):
        Profile.model_validate_json(sent)


def test_a_profile_holds_no_text() -> None:
    secret = [f"my secret {number}" for number in range(5000)]
    raw, _ = write_profile(profile_of({"text": secret}, len(secret)))
    assert b"secret" not in raw


@pytest.mark.parametrize("count", [1, 2, 11, 200])
def test_quantiles_of_any_number_and_order_are_read_over_the_whole_distribution(
    count: int,
) -> None:
    def made(spread: float) -> Profile:
        quantiles = [*reversed(np.linspace(-spread, spread, count).tolist())] if count > 1 else [0]
        sketch = {"mean": 0.0, "std": spread, "quantiles": [one + spread for one in quantiles]}
        columns = [{"kind": "number", "name": "a", "sketch": sketch}]
        return Profile.model_validate({"rows": 10_000, "columns": columns})

    (found,) = differences(made(1.0), made(3.0), DriftLimits())
    assert found.ks == pytest.approx(2 / 3 if count > 1 else 1.0, abs=0.1)
    assert differences(made(1.0), made(1.0), DriftLimits()) == []
