"""Inputs of a step of a pipeline: folders by name; data are named by them as `in:NAME`."""

from __future__ import annotations

import os
from pathlib import Path

from gangline_schemas.artifacts import DATA_OF_INPUT
from gangline_worker.data.errors import DataError

INPUTS_ENV = "GANGLINE_IN"


def find(name: str) -> Path | None:
    """The folder of an input, if the job has it."""
    top = os.environ.get(INPUTS_ENV)
    path = Path(top or ".", name)
    return path if top is not None and path.is_dir() else None


def placed(source: str) -> str:
    """The folder of `in:NAME`, an input of the job; any other source as it is.

    Raises:
        DataError: the job has no such input.
    """
    name = source.removeprefix(DATA_OF_INPUT)
    if name == source:
        return source
    path = find(name)
    if path is None:
        raise DataError(
            f"data: the job has no input {name}; give the step `in: {{{name}: STEP.OUT}}`"
        )
    return str(path)
