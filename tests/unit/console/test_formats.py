"""Numbers, sizes, durations and times as pages write them."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta

import pytest

from gangline_console.formats import (
    NONE,
    duration,
    gpu_time,
    number,
    plain,
    relative,
    shortened,
    size,
)
from gangline_console.render import coded


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, NONE), (0, "0"), (12345, "12,345"), (0.03127, "0.03127"), (1.5, "1.5"),
        (123456.7, "123,457"), (3.2e-7, "3.2e-7"), (-0.5, "-0.5"), (math.inf, "∞"),
        (math.nan, "NaN"), (1e20, "1e20"),
    ],
)  # fmt: skip
def test_numbers(value: float | None, text: str):
    assert number(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("0.03333333333333333", "0.03333"), ("0.00012", "0.00012"), ("20261126123", "20261126123"),
        ("gpt-4.0-turbo-long", "gpt-4.0-turbo-long"),
    ],
)  # fmt: skip
def test_long_fractions_are_shortened(value: str, text: str):
    assert shortened(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 B"), (999, "999 B"), (1500, "1.5 KB"), (999_600, "1.0 MB"), (14.2e9, "14.2 GB")],
)
def test_sizes(value: float, text: str):
    assert size(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"), (0.25, "250 ms"), (9.99, "9.9 s"), (59.9, "59 s"), (200, "3 min 20 s"),
        (3600, "1 h"), (7500, "2 h 5 min"), (3 * 86400 + 4 * 3600, "3 d 4 h"), (-5, "-5 s"),
    ],
)  # fmt: skip
def test_durations(seconds: float, text: str):
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("ago_s", "text"),
    [(1, "now"), (40, "40 s ago"), (200, "3 min ago"), (-5400, "in 1 h"), (40 * 86400, "40 d ago")],
)
def test_relative_times(ago_s: float, text: str):
    now = datetime(2026, 11, 26, tzinfo=UTC)
    assert relative(now - timedelta(seconds=ago_s), now) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, NONE), (32, "32 GPU-s"), (324, "5.4 GPU-min"), (4_500_000, "1,250 GPU-h")],
)
def test_gpu_time(seconds: float | None, text: str):
    assert gpu_time(seconds) == text


def test_terminal_escapes_are_removed():
    assert plain("\x1b[1;32mok\x1b[0m \x1b]0;title\x07done\tx\x00") == "ok done\tx\ufffd"


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("see `gangline explain J`", "see <code>gangline explain J</code>"),
        ("<b> `<i>`", "&lt;b&gt; <code>&lt;i&gt;</code>"),
        ("one ` alone", "one ` alone"),
    ],
)
def test_commands_in_texts_are_code_and_all_is_escaped(text: str, html: str):
    assert str(coded(text)) == html
