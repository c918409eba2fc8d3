"""A value of any shape is accepted or refused, in each field of each model that is read.

A validator that raises anything but ValueError would be an internal error of the reader.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

import gangline_alerts
import gangline_gateway
import gangline_schemas
from gangline_schemas.base import FailsFast

READ = (gangline_schemas, gangline_gateway, gangline_alerts)
ODD: tuple[Any, ...] = (
    None, True, -1, 0.5, 10**400, "", "0", "²", "\ud800", b"\xff",
    [], [None], [[]], [{}], [1, "a", {}], {}, {"": None}, {"a": {}}, {"a": [{}]}, {1: 2},
)  # fmt: skip


def _models() -> list[type[BaseModel]]:
    """Each model that is read from outside: events, files, and bodies of requests."""
    for package in READ:
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)
    names = {package.__name__ for package in READ}
    found = {kind for kind in _below(FailsFast) if kind.__module__.split(".")[0] in names}
    return sorted(found, key=lambda kind: (kind.__module__, kind.__qualname__))


def _below(kind: type[BaseModel]) -> Iterator[type[BaseModel]]:
    for one in kind.__subclasses__():
        yield one
        yield from _below(one)


@pytest.mark.parametrize("model", _models(), ids=lambda kind: kind.__name__)
def test_an_odd_value_is_accepted_or_refused(model: type[BaseModel]) -> None:
    given = [*ODD, *({name: value} for name in model.model_fields for value in ODD)]
    found = {repr(value): _other_error(model, value) for value in given}
    assert {value: error for value, error in found.items() if error is not None} == {}


def _other_error(model: type[BaseModel], value: Any) -> Exception | None:
    try:
        model.model_validate(value)
    except ValidationError:
        return None
    except Exception as error:
        return error
    return None
