"""docs/reference/job-file.md lists exactly the fields of a job; its and README's examples hold."""

from __future__ import annotations

import re
import types
import typing
from pathlib import Path

import pytest
import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from gangline_schemas.job import JobSpec

REFERENCE = Path(__file__).parents[3] / "docs" / "reference" / "job-file.md"
EXAMPLES = [
    text
    for page in (REFERENCE, REFERENCE.parents[2] / "README.md")
    for text in re.findall(r"^```yaml\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
]


def model_in(annotation: object) -> type[BaseModel] | None:
    """The model in X, X | None or tuple[X, ...]."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if typing.get_origin(annotation) in {tuple, types.UnionType, typing.Union}:
        found = [model_in(part) for part in typing.get_args(annotation)]
        return next((model for model in found if model), None)
    return None


def fields_of(model: type[BaseModel], prefix: str = "") -> dict[str, FieldInfo]:
    found: dict[str, FieldInfo] = {}
    for name, field in model.model_fields.items():
        inner = model_in(field.annotation)
        if inner is None:
            found[prefix + name] = field
            continue
        if typing.get_origin(field.annotation) is tuple:
            found[prefix + name] = field
        found |= fields_of(inner, f"{prefix}{name}.")
    return found


def documented() -> dict[str, str]:
    rows = re.findall(r"^\| `([a-z_.]+)` \| ([^|]+) \|", REFERENCE.read_text(), re.MULTILINE)
    assert len(rows) == len(dict(rows)), "a field stands twice"
    return {name: default.strip() for name, default in rows}


def test_every_field_is_documented_and_no_other() -> None:
    assert set(documented()) == set(fields_of(JobSpec))


@pytest.mark.parametrize("name", sorted(fields_of(JobSpec)))
def test_defaults_are_those_of_the_model(name: str) -> None:
    field, written = fields_of(JobSpec)[name], documented()[name]
    if field.is_required():
        assert written == "required"
    else:
        value = field.get_default(call_default_factory=True, validated_data={})
        words = {"any": (), "[]": (), "{}": {}, "-": None, "false": False}
        if name == "restart.on":
            assert (written, len(value)) == ("all four", 4)
        elif written in words:
            assert value == words[written]
        else:
            assert str(value).removesuffix(".0") == written


def test_both_pages_have_examples() -> None:
    assert len(EXAMPLES) > 1


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_examples_are_job_files(number: int) -> None:
    content = yaml.safe_load(EXAMPLES[number])
    assert JobSpec.model_validate(content).name == content["name"]
