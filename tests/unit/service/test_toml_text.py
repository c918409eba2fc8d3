"""TOML that is written is read back as it was."""

from __future__ import annotations

import math
import tomllib

import pytest

from gangline_service.toml_text import toml_text

CONTENT = {
    "store_url": "s3://gangline?endpoint=https://s3.example",
    "sasl.password": 'a "quoted" one\\ with\x7f\t\n and \u00e9',
    "ports": [20000, 32000],
    "ratio": 0.5,
    "on": True,
    "agent": {"labels": {"nvidia.com/gpu.product": "H100", "": "empty"}, "cpus": 4},
    "a b": {"x": "y"},
}


def test_what_is_written_is_read_back() -> None:
    assert tomllib.loads(toml_text(CONTENT)) == CONTENT
    assert tomllib.loads(toml_text({"table": {"a": 1}, "plain": 2})) == {
        "plain": 2,
        "table": {"a": 1},
    }
    assert toml_text({"empty": {}}) == ""


@pytest.mark.parametrize(("value", "error"), [(None, TypeError), (math.inf, ValueError)])
def test_values_that_toml_or_settings_do_not_have_are_errors(
    value: object, error: type[Exception]
) -> None:
    with pytest.raises(error):
        toml_text({"name": value})
