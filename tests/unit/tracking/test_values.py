"""What can be logged, and how what cannot is refused."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
import torch

from gangline.tracking.device import OnDevice
from gangline.tracking.values import PARAM_CHARS, check_name, params_of, points_of, step_of, tags_of
from support.builders import unicode_names


def test_numbers_of_every_kind() -> None:
    given: dict[str, Any] = {
        "float": 0.5, "int": 3, "bool": True, "decimal": Decimal("0.25"),
        "numpy": np.float32(1.5), "array": np.array(2), "one": np.array([[4.0]]),
        "tensor": torch.tensor(0.75), "one tensor": torch.tensor([2]),
        "with grad": torch.tensor(1.0, requires_grad=True),
        "half": torch.tensor(0.5, dtype=torch.bfloat16),
    }  # fmt: skip
    assert points_of(given, set()) == [
        ("float", 0.5), ("int", 3.0), ("bool", 1.0), ("decimal", 0.25), ("numpy", 1.5),
        ("array", 2.0), ("one", 4.0), ("tensor", 0.75), ("one tensor", 2.0), ("with grad", 1.0),
        ("half", 0.5),
    ]  # fmt: skip


def test_what_is_not_finite_is_kept() -> None:
    found = dict(points_of({"a": math.nan, "b": math.inf, "c": -math.inf}, set()))
    assert math.isnan(float(found["a"]))
    assert (found["b"], found["c"]) == (math.inf, -math.inf)


def test_nested_names() -> None:
    assert points_of({"eval": {"acc": 1, "by": {"en": 2}}, "x": 3}, set()) == [
        ("eval/acc", 1.0), ("eval/by/en", 2.0), ("x", 3.0),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("metrics", "error", "text"),
    [
        ({"note": "good"}, TypeError, "note: 'good' is text"),
        ({"loss": "0.5"}, TypeError, "loss: '0.5' is text"),
        ({"loss": None}, TypeError, "loss: None"),
        ({"eval": {"acc": "x"}}, TypeError, "eval/acc: 'x' is text"),
        ({"grad": np.zeros(3)}, TypeError, "grad: 3 values"),
        ({"grad": torch.zeros(2, 2)}, TypeError, "grad: 4 values"),
        ({"list": [1.0]}, TypeError, "list: a list is not one number"),
        ({"z": 1j}, TypeError, "z: a complex is not one number"),
        ({"big": 10**400}, ValueError, "big: the number is too large"),
        (0.5, TypeError, "metrics: a float has no names; give a mapping"),
        ({1: 0.5}, TypeError, "1: a name must be text"),
        ({"": 0.5}, ValueError, "'': "),
        ({"a//b": 0.5}, ValueError, "a//b: "),
        ({"../a": 0.5}, ValueError, "../a: "),
        ({"/a": 0.5}, ValueError, "/a: "),
        ({"a\n": 0.5}, ValueError, r"'a\n'"),
        ({"loss%": 0.5}, ValueError, "'loss%'"),
        ({"x" * 251: 0.5}, ValueError, "a name of 251 characters"),
    ],
)
def test_refusals_name_the_key(metrics: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error) as caught:
        points_of(metrics, set())
    assert text in str(caught.value)


def test_a_mapping_that_holds_itself_is_refused() -> None:
    endless: dict[str, Any] = {}
    endless["again"] = endless
    with pytest.raises(ValueError, match="levels of nesting"):
        points_of(endless, set())


def test_params_are_texts() -> None:
    assert params_of({"lr": 0.1, "net": {"depth": 3, "act": None}, "sizes": [1, 2]}) == {
        "lr": "0.1", "net/depth": "3", "net/act": "None", "sizes": "[1, 2]",
    }  # fmt: skip
    with pytest.raises(ValueError, match=r"prompt: 6,001 characters, at most 6,000"):
        params_of({"prompt": "x" * (PARAM_CHARS + 1)})
    with pytest.raises(ValueError, match="a/b: two values, '1' and '2'"):
        params_of({"a": {"b": 1}, "a/b": 2})
    with pytest.raises(ValueError, match="note: 8,001 characters"):
        tags_of({"note": "x" * 8001})
    with pytest.raises(ValueError, match=r"gangline\.job: tags that begin with"):
        tags_of({"gangline.job": "x"})


def test_what_no_database_keeps_is_replaced() -> None:
    name = b"/data/\xff.bin".decode(errors="surrogateescape")
    assert params_of({"path": name}) == {"path": "/data/?.bin"}
    assert tags_of({"note": "a\0b"}) == {"note": "a?b"}


@pytest.mark.parametrize("step", [0, 7, np.int64(7), torch.tensor(7), 2**53 - 1])
def test_steps(step: Any) -> None:
    assert step_of(step) == int(step)


@pytest.mark.parametrize(
    ("step", "error"), [(-1, ValueError), (2**53, ValueError), (1.0, TypeError), ("1", TypeError)]
)
def test_steps_that_are_refused(step: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="step: "):
        step_of(step)


NAMES = [
    "loss", "eval/acc", "a.b-c_d e", "größe", "損失", "a:b", "..", ".", "a/..", "a/", "/a", "a//b",
    "./a", "..a", "a\n", "a%", "a\\b", "", " ", "a" * 250, "a" * 251, "\u0301", "x²", "a\tb",
]  # fmt: skip


@pytest.mark.parametrize("name", [*NAMES, *unicode_names.names().values()])
def test_names_are_judged_as_mlflow_does(name: str) -> None:
    validation = pytest.importorskip("mlflow.utils.validation")
    exceptions = pytest.importorskip("mlflow.exceptions")
    try:
        validation._validate_metric(name, 1.0, 0, 0)
    except exceptions.MlflowException:
        accepted = False
    else:
        accepted = name not in {"", "a\n"}  # the platform's server refuses line breaks
    try:
        check_name(name)
    except ValueError:
        assert not accepted
    else:
        assert accepted


class _Gpu:
    """An event and a copy on a GPU that may have failed."""

    def __init__(self, *, failed: bool) -> None:
        self.failed, self.waited = failed, False

    def synchronize(self) -> None:
        if self.failed:
            raise RuntimeError("CUDA error")
        self.waited = True

    def item(self) -> float:
        assert self.waited
        return 0.5


def test_a_value_on_a_gpu_is_read_when_it_is_there() -> None:
    gpu = _Gpu(failed=False)
    assert float(OnDevice(gpu, gpu)) == 0.5
    broken = _Gpu(failed=True)
    assert math.isnan(float(OnDevice(broken, broken)))
