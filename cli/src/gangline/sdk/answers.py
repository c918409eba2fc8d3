"""Between the gateway's JSON and the SDK's values: reading, parts of paths."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from pydantic import ValidationError

from gangline.errors import CliError, ExitCode
from gangline_schemas.api import base
from gangline_schemas.api.runs import Curve, StepMetrics

AnswerT = TypeVar("AnswerT")


def steps_of(curves: Sequence[Curve]) -> list[StepMetrics]:
    """Curves' points by step, in order."""
    found: dict[int, dict[str, float]] = {}
    times: dict[int, int] = {}
    for curve in curves:
        for point in curve.points:
            found.setdefault(point.step, {})[curve.name] = point.value
            times[point.step] = round(point.time.timestamp() * 1000)
    return [
        StepMetrics(step=step, time_ms=times[step], metrics=found[step]) for step in sorted(found)
    ]


def topic_name(name: str) -> str:
    """A topic's short name: scheduling for gangline.scheduling."""
    return name.removeprefix("gangline.")


def read(kind: type[AnswerT], content: Any) -> AnswerT:
    """A JSON answer as a value. Raises CliError."""
    try:
        return base.read(kind, content)
    except ValidationError as error:
        raise _unreadable(kind, error) from None


def parse(kind: type[AnswerT], text: str) -> AnswerT:
    """JSON text as a value. Raises CliError."""
    try:
        return base.parse(kind, text)
    except ValidationError as error:
        raise _unreadable(kind, error) from None


def _unreadable(kind: type[Any], error: ValidationError) -> CliError:
    first = error.errors(include_url=False, include_input=False)[0]
    place = ".".join(str(part) for part in first["loc"])
    return CliError(
        f"the gateway's answer is no {kind.__name__}: {place}: {first['msg']}",
        "are the command line and the gateway of the same version? see: gangline --version",
    )


def path_id(text: str) -> str:
    """An id as one part of a path; what could be more is refused."""
    if not text or not all(char.isalnum() or char in "-_." for char in text) or text[0] == ".":
        raise CliError(
            f"{text!r} is no id", "ids hold a-z, 0-9 and '-'; see: gangline list", ExitCode.USAGE
        )
    return text
