"""Placeholders in jobs of steps and trials: `${{ params.lr }}`, `${{ item }}`, `${{ lr }}`.

In a step they are replaced in texts of `command`, `run`, `env`, `hyperparameters`, `data_snapshot`
and `purpose`. In `run` a value is quoted for the shell. A text that is one placeholder alone keeps
the type of its value in hyperparameters.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from gangline_schemas.job import JobSpec

_PLACEHOLDER = re.compile(r"\$\{\{\s*+([^{}\s]{0,128}+)\s*+\}\}")
"""Each part keeps what it matched: else a line of spaces would cost the square of its length."""
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
        changed[field] = filled(
            getattr(job, field), field, lambda _, name: values[name], _is_hyperparameter
        )
    data = job.model_dump(mode="json", exclude_defaults=True) | changed
    return JobSpec.model_validate(data)


def _is_hyperparameter(place: str) -> bool:
    return place.startswith("hyperparameters")


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from _texts(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _texts(part)


def filled(
    value: Any,
    place: str,
    lookup: Callable[[str, str], Any],
    whole: Callable[[str], bool] = lambda _: False,
) -> Any:
    """A value with its placeholders replaced, in lists and objects too.

    `lookup(place, name)` gives the value of a name; `place` names the field, like `env.LR`. In
    `run`, a shell line, values are quoted. Where `whole(place)`, a text that is one placeholder
    alone becomes its value, of any type.
    """
    if isinstance(value, Mapping):
        return {key: filled(part, f"{place}.{key}", lookup, whole) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [filled(part, f"{place}.{at}", lookup, whole) for at, part in enumerate(value)]
    if not isinstance(value, str):
        return value
    alone = _PLACEHOLDER.fullmatch(value)
    if alone and whole(place):
        return lookup(place, alone[1])
    quote: Callable[[str], str] = shlex.quote if place == "run" else str
    return _PLACEHOLDER.sub(lambda match: quote(as_text(lookup(place, match[1]))), value)


def as_text(value: Any) -> str:
    """A value in a command line: texts as they are, others as JSON."""
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)
