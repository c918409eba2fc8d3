"""The folders of a step's inputs and outputs, and JSON in them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from gangline_worker.data.step_inputs import find


class StepError(Exception):
    """A step cannot do its work; the message says what is missing, and the way out."""


def given(name: str) -> Path:
    """The folder of an input. Raises StepError."""
    found = find(name)
    if found is None:
        raise StepError(f"there is no input {name}; give the step `in: {{{name}: STEP.OUT}}`")
    return found


def output(name: str) -> Path | None:
    """The place of an output, if the step declares it: folders are made by the agent.

    Raises StepError outside of a step with outputs.
    """
    if os.environ.get("GANGLINE_OUT") is None:
        raise StepError("GANGLINE_OUT is not set; run this as a step with outputs")
    return declared(name)


def declared(name: str) -> Path | None:
    """The same for a program that may also run outside of a step."""
    path = Path(os.environ.get("GANGLINE_OUT", ""), name)
    return path if "GANGLINE_OUT" in os.environ and path.is_dir() else None


def leave_score(name: str, value: float) -> None:
    """A score; the platform keeps it if the step declares it."""
    Path(os.environ["GANGLINE_OUT"], name).write_text(f"{value!r}\n")


def write_json(path: Path, value: Any) -> None:
    """Write JSON, equal for equal values."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=1, sort_keys=True) + "\n")


def read_json(path: Path) -> Any:
    """Read JSON. Raises StepError."""
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise StepError(f"{path.name}: {error}") from None
