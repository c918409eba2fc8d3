"""A study as a journal of Optuna: one JSON object a line, as `JournalFileBackend` writes it.

Optuna counts trials from 0 without gaps, so its numbers differ where trials were withdrawn; the
user attributes `gangline.trial` and `gangline.job` have ours. A trial that runs, waits or is paused
is RUNNING there. A pruned one has its last report as its value, as Optuna itself notes it. Needs no
Optuna.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from gangline.errors import CliError, ExitCode
from gangline_schemas.api.studies import StudyCurves, StudyDetail, Trial
from gangline_schemas.study_file import StudySpec
from gangline_schemas.study_space import ChoiceParameter, FloatParameter, IntParameter, Value

_CREATE_STUDY, _SET_STUDY_ATTR, _CREATE_TRIAL = 0, 2, 4
_RUNNING, _COMPLETE, _PRUNED, _FAIL = 0, 1, 2, 3
_STATES: Final = {"completed": _COMPLETE, "pruned": _PRUNED, "failed": _FAIL}
_DIRECTIONS: Final = {"minimize": 1, "maximize": 2}
_Parameter = FloatParameter | IntParameter | ChoiceParameter


def write_journal(
    path: Path, study: StudyDetail, trials: Sequence[Trial], curves: StudyCurves
) -> None:
    """Write a new file. Raises CliError if it exists, or the study's spec is unknown."""
    spec = study.spec
    if spec is None:
        raise CliError(f"the spec of {study.study_id} is of a later version: upgrade gangline")
    known = {
        curve.number: dict(zip(curve.steps, curve.values, strict=True)) for curve in curves.curves
    }
    records = [
        {
            "op_code": _CREATE_STUDY,
            "study_name": study.study_id,
            "directions": [_DIRECTIONS[each.direction] for each in spec.objective],
        },
        *(_attribute(name, value) for name, value in _attributes(study).items()),
        *(_trial(spec, each, known.get(each.number, {})) for each in trials),
    ]
    try:
        with path.open("x", encoding="utf-8") as target:
            for record in records:
                line = json.dumps({**record, "worker_id": "gangline"}, separators=(",", ":"))
                target.write(f"{line}\n")
    except OSError as error:
        raise CliError(f"cannot write {path}: {error.strerror}", code=ExitCode.USAGE) from None


def _attributes(study: StudyDetail) -> dict[str, Any]:
    return {
        "gangline.team": study.team,
        "gangline.sampler": study.sampler,
        "gangline.stopping": study.stopping,
        "gangline.seed": study.seed,
    }


def _attribute(name: str, value: Any) -> dict[str, Any]:
    return {"op_code": _SET_STUDY_ATTR, "study_id": 0, "user_attr": {name: value}}


def _trial(spec: StudySpec, trial: Trial, curve: dict[int, float | None]) -> dict[str, Any]:
    results = [trial.values.get(each.metric) for each in spec.objective]
    state = _STATES.get(trial.state, _RUNNING)
    if state == _COMPLETE and None in results:
        state = _FAIL
    single = len(results) == 1
    return {
        "op_code": _CREATE_TRIAL,
        "study_id": 0,
        "state": state,
        "value": results[0] if single and state in {_COMPLETE, _PRUNED} else None,
        "values": results if state == _COMPLETE and not single else None,
        "datetime_start": _moment(trial.proposed_at),
        **({"datetime_complete": _moment(trial.ended_at)} if trial.ended_at else {}),
        "distributions": {name: _distribution(spec.space[name]) for name in trial.parameters},
        "params": {
            name: _internal(spec.space[name], value) for name, value in trial.parameters.items()
        },
        "user_attrs": {
            "gangline.trial": trial.number,
            "gangline.job": trial.job_id,
            "gangline.gpu_hours": trial.gpu_hours,
        },
        "system_attrs": _constraints(spec, trial) if state in {_COMPLETE, _PRUNED} else {},
        "intermediate_values": {
            str(step): math.nan if value is None else value for step, value in curve.items()
        },
    }


def _constraints(spec: StudySpec, trial: Trial) -> dict[str, Any]:
    if not spec.constraints:
        return {}
    found = [each.violation(trial.values.get(each.metric)) for each in spec.constraints]
    return {"constraints": found}


def _moment(at: datetime) -> str:
    return at.isoformat(timespec="microseconds")


def _distribution(parameter: _Parameter) -> str:
    if isinstance(parameter, ChoiceParameter):
        return _named("CategoricalDistribution", choices=list(parameter.values))
    numbers = {"low": parameter.low, "high": parameter.high, "log": parameter.log}
    if isinstance(parameter, IntParameter):
        return _named("IntDistribution", **numbers, step=parameter.step or 1)
    return _named("FloatDistribution", **numbers, step=parameter.step)


def _named(kind: str, **attributes: Any) -> str:
    return json.dumps({"name": kind, "attributes": attributes})


def _internal(parameter: _Parameter, value: Value) -> float:
    if isinstance(parameter, ChoiceParameter):
        return float(parameter.place(value))
    return float(value or 0)
