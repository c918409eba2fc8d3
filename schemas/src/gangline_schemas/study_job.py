"""The job of a trial: a study's template with the trial's parameters in it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from gangline_schemas.base import field_errors
from gangline_schemas.job import JobSpec, TrialRef
from gangline_schemas.placeholders import filled
from gangline_schemas.study_space import Value, in_order

if TYPE_CHECKING:
    from gangline_schemas.study_file import StudySpec

_NOT_HERE = {"trial": "the studies service sets it", "validates": "a trial trains"}
_PROBES, _PROBED_BYTES = 64, 16 << 10
"""So many sets of parameters are tried on the template, and their jobs have together so many bytes.

One set is always tried. A problem that shows with another one ends the study with its reason.
"""


class TemplateError(Exception):
    """A placeholder names nothing that the trial has."""


def job_of(
    spec: StudySpec,
    study_id: str,
    number: int,
    parameters: Mapping[str, Value],
    resume_from: str | None = None,
) -> JobSpec:
    """The job of one trial. With `resume_from` it continues that job's newest checkpoint.

    Parameters replace hyperparameters of the same name. In `run`, a shell line, values are quoted.
    Raises TemplateError and pydantic's ValidationError.
    """

    def lookup(place: str, name: str) -> Value:
        if name not in parameters:
            raise TemplateError(f"{place}: ${{{{ {name} }}}} is no parameter of each trial")
        return parameters[name]

    content = {name: filled(value, name, lookup, _keeps_types) for name, value in spec.job.items()}
    given = content.get("hyperparameters")
    content |= {
        "name": f"{study_id}-t{number}",
        "team": spec.team,
        "hyperparameters": {**(given if isinstance(given, dict) else {}), **parameters},
        "trial": TrialRef(study_id=study_id, number=number, metrics=spec.metrics),
    }
    if spec.project is not None:
        content["project"] = spec.project
    if resume_from is not None:
        content["resume_from"] = resume_from
        _resume_newest(content)
    return JobSpec.model_validate(content)


def example_job(spec: StudySpec, study_id: str) -> JobSpec:
    """The job of a trial at one point of the space."""
    return job_of(spec, study_id, 0, next(_probes(spec)))


def job_problem(spec: StudySpec) -> str | None:
    """Why the template makes no job, as a sentence that begins with the field; None: it does."""
    for name, why in _NOT_HERE.items():
        if name in spec.job:
            return f"job.{name}: must not be given: {why}"
    team = spec.job.get("team", spec.team)
    if team != spec.team:
        return "job.team: differs from the study's team; leave it out"
    most = max(1, min(_PROBES, _PROBED_BYTES // len(json.dumps(spec.job))))
    for parameters in islice(_probes(spec), most):
        try:
            job_of(spec, spec.name[:40].strip("-"), 0, parameters)
        except TemplateError as error:
            return f"job.{error}"
        except ValidationError as error:
            first = field_errors(error, model=JobSpec)[0]
            shown = ", ".join(f"{name} = {value}" for name, value in list(parameters.items())[:4])
            return f"job.{first.field}: {first.message} (with {shown})"[:1000]
    return None


def _probes(spec: StudySpec) -> Iterator[dict[str, Value]]:
    """Sets of parameters: all at their first value, then each at its other ones."""
    names = in_order(spec.space) or ()
    first = _applied(spec, names, {})
    yield first
    for name, parameter in spec.space.items():
        others = parameter.probes()[1:] if name in first else parameter.probes()
        for value in others:
            yield _applied(spec, names, {name: value})


def _applied(spec: StudySpec, names: Iterable[str], given: dict[str, Value]) -> dict[str, Value]:
    found: dict[str, Value] = {}
    for name in names:
        parameter = spec.space[name]
        if parameter.applies(found):
            found[name] = given.get(name, parameter.probes()[0])
    return found


def _keeps_types(place: str) -> bool:
    return place.partition(".")[0] not in {"run", "command", "env"}


def _resume_newest(content: dict[str, Any]) -> None:
    for name in ("checkpoint", "checkpointPolicy", "checkpoint_policy"):
        policy = content.get(name)
        if isinstance(policy, dict) and "resume" in policy:
            content[name] = {key: each for key, each in policy.items() if key != "resume"}
