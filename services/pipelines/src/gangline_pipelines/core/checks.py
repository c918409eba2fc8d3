"""All checks of a pipeline that a request must pass."""

from __future__ import annotations

from datetime import UTC, datetime

from cronsim import CronSim, CronSimError

from gangline_schemas.base import FieldError
from gangline_schemas.pipeline_checks import pipeline_problems
from gangline_schemas.pipeline_file import PipelineSpec
from gangline_schemas.unsupported import cannot_do

_FIELDS = 5
_ANY_DAY = datetime(2026, 1, 1, tzinfo=UTC)


def problems(spec: PipelineSpec) -> list[FieldError]:
    """The problems of a pipeline, with the field of each; [] when all is well."""
    found = pipeline_problems(spec)
    for name, trigger in spec.triggers.items():
        wrong = _wrong_schedule(trigger.schedule) if trigger.schedule is not None else None
        if wrong is not None:
            found.append(FieldError(field=f"triggers.{name}.schedule", message=wrong))
    for name, step in spec.steps.items():
        unsupported = cannot_do(step.job) if step.job is not None else None
        if unsupported is not None:
            found.append(FieldError(field=f"steps.{name}.job", message=unsupported))
    return found


def _wrong_schedule(text: str) -> str | None:
    if len(text.split()) != _FIELDS:
        return "has five fields: minute, hour, day of month, month, day of week, like: 0 3 * * *"
    try:
        next(CronSim(text, _ANY_DAY))
    except CronSimError as error:
        return f"{error}; give five fields, like: 0 3 * * *"
    except StopIteration:
        return "names no time within 50 years"
    return None
