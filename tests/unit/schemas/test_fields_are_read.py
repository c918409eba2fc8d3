"""Every field of a job file is read by some code, or refused: none is accepted and ignored."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from gangline_schemas.job import JobSpec

ROOT = Path(__file__).parents[3]
READERS = ("services/*/src", "worker/src")
PREPARED = {
    "version": "one value is accepted",
    "workdir": "the client packs it and sends code_bundle",
    "code_ref": "recorded: lists, comparisons and the runs table show it",
    "code_diff": "recorded in job.submitted; its digest goes on",
    "code_diff_digest": "recorded: comparisons show that code differs",
}
"""Fields that no service and no worker reads, each with the reason why that is right."""


def models(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    """The model and all models below it."""
    yield model
    for field in model.model_fields.values():
        for inner in inner_models(field.annotation):
            yield from models(inner)


def inner_models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from inner_models(part)


FIELDS = sorted(
    {(model.__name__, name) for model in models(JobSpec) for name in model.model_fields}
)


@cache
def names_read() -> frozenset[str]:
    """Of the fields' names, those that services and the worker read, or schemas of a spec."""
    missing = {name for _, name in FIELDS}
    paths = [path for pattern in READERS for path in ROOT.glob(f"{pattern}/**/*.py")]
    paths += (ROOT / "schemas/src/gangline_schemas").glob("*.py")
    for path in paths:
        text = path.read_text(encoding="utf-8")
        if path.name in {"job.py", "unsupported.py", "validation.py"}:
            continue
        if any(f".{name}" in text for name in missing):
            missing -= {
                node.attr
                for node in ast.walk(ast.parse(text))
                if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
            }
    return frozenset(name for _, name in FIELDS if name not in missing)


@pytest.mark.parametrize(("model", "name"), FIELDS)
def test_somebody_reads_the_field(model: str, name: str) -> None:
    read = name in names_read()
    if model == "JobSpec" and name in PREPARED:
        return
    assert read, f"nobody reads {model}.{name}: refuse it in unsupported.py, or say why it stays"


def test_the_exceptions_are_fields() -> None:
    assert set(PREPARED) <= set(JobSpec.model_fields)
