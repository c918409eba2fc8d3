"""YAML scalars are those of YAML 1.2's core schema."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from gangline_schemas.yaml_core import load_yaml


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3e-4", 3e-4), ("1E5", 1e5), ("3.0e-4", 3e-4), (".5", 0.5), ("1.", 1.0), ("-2.5", -2.5),
        ("12", 12), ("-3", -3), ("0", 0), ("0x1f", 31), ("017", "017"), ("1_000", "1_000"),
        ("on", "on"), ("off", "off"), ("yes", "yes"), ("no", "no"), ("y", "y"),
        ("true", True), ("False", False), ("null", None), ("~", None), ("", None),
        ("10:30", "10:30"), ("2026-01-01", "2026-01-01"), ("1.2.3", "1.2.3"), ("1e", "1e"),
        ("'12'", "12"), (".inf", float("inf")),
    ],
)  # fmt: skip
def test_scalars(text: str, value: Any) -> None:
    found = load_yaml(text)
    assert found == value
    assert type(found) is type(value)


def test_the_key_on_is_a_text() -> None:
    assert load_yaml("{max: 3, on: [node, hang]}") == {"max": 3, "on": ["node", "hang"]}


@pytest.mark.parametrize("text", ["!!python/object/apply:os.system [id]", "a: [1", "*missing"])
def test_what_is_not_plain_yaml_is_refused(text: str) -> None:
    with pytest.raises(yaml.YAMLError):
        load_yaml(text)


@pytest.mark.parametrize("text", ["a: 1\nb: 2\na: 3", "x: {n: 1, n: 2}", "- {on: 1, 'on': 2}"])
def test_a_key_that_comes_twice_is_refused(text: str) -> None:
    with pytest.raises(yaml.YAMLError, match="is given twice"):
        load_yaml(text)


def test_a_merged_mapping_may_be_replaced_in_part() -> None:
    text = "base: &base {lr: 1, steps: 2}\nrun: {<<: *base, lr: 3}"
    assert load_yaml(text)["run"] == {"lr": 3, "steps": 2}


def test_the_shared_loader_of_pyyaml_is_untouched() -> None:
    assert yaml.safe_load("on") is True
