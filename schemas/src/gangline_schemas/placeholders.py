"""Placeholders in the job of a step: `${{ params.lr }}`, `${{ item }}`, `${{ trigger.subject }}`.

They are replaced in texts of `command`, `run`, `env`, `hyperparameters`, `data_snapshot` and
`purpose`. In `run` a value is quoted for the shell. A text that is one placeholder alone keeps the
type of its value in hyperparameters.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from gangline_schemas.job import JobSpec

_PLACEHOLDER = re.compile(r"\$\{\{\s*([A-Za-z0-9_.-]*)\s*\}\}")
BEST = "best."
"""`${{ best.STEP.NAME }}`: a parameter of the best trial of a step that is a study."""
FIELDS = ("command", "run", "env", "hyperparameters", "data_snapshot", "purpose")


class UnknownPlaceholder(Exception):
    """A placeholder names no value; `name` is what it names, `field` where it stands."""

    def __init__(self, field: str, name: str) -> None:
        super().__init__(f"{field}: {name}")
        self.field = field
        self.name = name


def named_in(job: JobSpec) -> Iterator[tuple[str, str]]:
    """The placeholders of a job, as (field, name)."""
    for field in FIELDS:
        for text in _texts(getattr(job, field)):
            for name in _PLACEHOLDER.findall(text):
                yield field, name


def best_named(job: JobSpec) -> Iterator[str]:
    """The steps whose best trial a job names."""
    for _, name in named_in(job):
        if name.startswith(BEST):
            yield name.removeprefix(BEST).partition(".")[0]


def replaced(job: JobSpec, values: Mapping[str, Any]) -> JobSpec:
    """The job with the values in place of placeholders. Raises UnknownPlaceholder.

    Raises pydantic.ValidationError if the job is not valid with them.
    """
    changed: dict[str, Any] = {}
    for field, name in named_in(job):
        if name not in values:
            raise UnknownPlaceholder(field, name)
        changed[field] = None
    if not changed:
        return job
    for field in changed:
        changed[field] = _put(getattr(job, field), values, field)
    data = job.model_dump(mode="json", exclude_defaults=True) | changed
    return JobSpec.model_validate(data)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from _texts(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _texts(part)


def _put(value: Any, values: Mapping[str, Any], field: str) -> Any:
    if isinstance(value, Mapping):
        return {key: _put(part, values, field) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_put(part, values, field) for part in value]
    if not isinstance(value, str):
        return value
    whole = _PLACEHOLDER.fullmatch(value)
    if whole and field == "hyperparameters":
        return values[whole[1]]
    quote: Callable[[str], str] = shlex.quote if field == "run" else str
    return _PLACEHOLDER.sub(lambda match: quote(_text(values[match[1]])), value)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)
