"""What the gateway answers with is typed in one package, which its clients read."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator

from pydantic import BaseModel

import gangline
import gangline_gateway
from support.builders.rest_document import rest_document


def below(kind: type) -> Iterator[type]:
    """All classes that inherit from it."""
    for one in kind.__subclasses__():
        yield one
        yield from below(one)


def test_every_answer_is_typed_in_the_package_of_answers() -> None:
    for package in (gangline_gateway, gangline):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)
    shown = set(rest_document()["components"]["schemas"])
    assert len(shown) > 90
    twins = [
        f"{kind.__module__}.{kind.__name__}"
        for kind in below(BaseModel)
        if kind.__name__ in shown
        and kind.__module__.split(".")[0] in {"gangline_gateway", "gangline"}
    ]
    assert twins == []
