"""A value of a wrong shape is an error that names its field, wherever it stands.

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
def test_an_odd_value_is_an_error_of_its_field(model: type[BaseModel]) -> None:
    for value in ODD:
        _only_refused(model, value)
        for name in model.model_fields:
            _only_refused(model, {name: value})


def _only_refused(model: type[BaseModel], value: Any) -> None:
    try:
        model.model_validate(value)
    except ValidationError:
        pass
    except Exception as error:
        raise AssertionError(f"{model.__qualname__} of {value!r}: {error!r}") from error
