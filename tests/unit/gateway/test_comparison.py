"""Runs side by side: which fields of their configurations differ, and which are the same."""

from __future__ import annotations

import json
from typing import Any

from gangline_gateway.comparison import compare
from gangline_gateway.history import HistoryRun
from support.builders.runs import run


def of(run_id: str, **spec: Any) -> HistoryRun:
    return HistoryRun(run(run_id), json.dumps({"name": run_id, **spec}))


def test_fields_differ_or_are_the_same_and_unset_ones_are_neither() -> None:
    shared = {"image": "torch:2.9", "code_diff_digest": "ab", "seed": None, "ports": [1, 2]}
    runs = [of("a", **shared, data={"lr": 0.1}), of("b", **shared, data={"lr": 0.2})]
    found = compare(runs, {}, [])
    assert [(one.field, one.values) for one in found.differences] == [
        ("data.lr", {"a": 0.1, "b": 0.2})
    ]
    assert found.same == {"image": "torch:2.9", "code_diff_digest": "ab", "ports": [1, 2]}


def test_a_field_that_only_one_run_has_differs() -> None:
    found = compare([of("a", image="torch:2.9"), of("b")], {}, [])
    assert [one.values for one in found.differences] == [{"a": "torch:2.9", "b": None}]
    assert found.same == {}
