"""The study spec: errors name the field, and a trial's job is what the template says."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from gangline_schemas import study_job
from gangline_schemas.base import field_errors
from gangline_schemas.job_file import read_document
from gangline_schemas.placeholders import filled
from gangline_schemas.study_file import StudySpec
from gangline_schemas.study_job import TemplateError, job_of
from gangline_schemas.study_space import grid_points, in_order

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "study-file.md"
LR = {"type": "float", "low": 1e-5, "high": 0.1, "log": True}
OPT = {"type": "choice", "values": ["adamw", "sgd"]}
GPUS = {"type": "choice", "values": [1, 2]}


def fields(**changes: Any) -> dict[str, Any]:
    made: dict[str, Any] = {
        "name": "sweep",
        "team": "nlp",
        "objective": {"metric": "loss"},
        "space": {"lr": LR, "opt": OPT},
        "job": {"command": ["python", "train.py"], "resources": {"gpus": 1}},
    }
    return {**made, **changes}


def spec(**changes: Any) -> StudySpec:
    return StudySpec.model_validate(fields(**changes))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"space": {"x": {**LR, "low": 0}}}, "must be above 0 where log is true"),
        ({"space": {"x": {**LR, "step": 1}}}, "give either log or step"),
        ({"space": {"x": {**LR, "low": 1}}}, "high (0.1) must be above low (1)"),
        ({"space": {"x": {**LR, "log": False, "step": 5e-324}}}, "is too small for a range"),
        ({"space": {"x": {"type": "choice", "values": [*range(10_000)]}}}, "at most 1000 items"),
        ({"space": {"x": {"type": "choice", "values": [1, 1]}}}, "holds a value twice"),
        ({"space": {"__proto__": LR}}, "begins with a letter"),
        ({"space": {"a b": LR}}, "begins with a letter"),
        ({"space": {}}, "at least 1 item"),
        ({"space": {"x": {**LR, "when": {"y": [1]}}}}, "'y' is no parameter of the space"),
        ({"space": {"x": LR, "y": {**LR, "when": {"x": [1]}}}}, "conditions are on int and choice"),
        ({"space": {"x": OPT, "y": {**LR, "when": {"x": ["lion"]}}}}, "never has"),
        (
            {"space": {
                "x": {**OPT, "when": {"y": ["sgd"]}}, "y": {**OPT, "when": {"x": ["sgd"]}},
            }},
            "in a circle",
        ),
        ({"objective": [{"metric": "a"}, {"metric": "a"}]}, "objective: names a metric twice"),
        ({"constraints": [{"metric": "m"}]}, "give exactly one of max and min"),
        ({"start": [{"width": 3}]}, "start.0.width: is no parameter"),
        ({"start": [{"lr": 3.0}]}, "start.0.lr: lies outside"),
        ({"sampler": "grid"}, "space.lr: grid needs a step"),
        (
            {"sampler": "cmaes", "objective": [{"metric": "a"}, {"metric": "b"}]},
            "cmaes has one objective",
        ),
        ({"stopping": {"kind": "asha", "min_steps": 9, "max_steps": 9}}, "above min_steps (9)"),
        (
            {"stopping": "median", "objective": [{"metric": "a"}, {"metric": "b"}]},
            "needs a single objective",
        ),
        (
            {"stopping": {"kind": "pbt", "interval_steps": 5}, "limits": {"parallel": 2}},
            "limits.parallel: is the population",
        ),
        ({"job": {"run": "x ${{ lrr }}", "resources": {"gpus": 1}}}, "job.run: ${{ lrr }}"),
        ({"job": {"run": "x", "resources": {"gpus": "${{ opt }}"}}}, "job.resources.gpus"),
        ({"job": {"run": "x", "resources": {"gpus": 1}, "team": "cv"}}, "job.team: differs"),
        ({"job": {"run": "x", "resources": {"gpus": 1}, "validates": True}}, "job.validates"),
        ({"job": {"run": "x", "resource": {"gpus": 1}}}, "job.resource"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError) as caught:
        spec(**changes)
    errors = field_errors(caught.value, model=StudySpec)
    assert any(said in f"{each.field}: {each.message}" for each in errors), errors


def test_a_grid_beyond_every_number_is_counted() -> None:
    whole = {"type": "int", "low": -(10**15), "high": 10**15}
    space = {f"n{number}": whole for number in range(30)} | {"lr": LR}
    assert math.isinf(grid_points(spec(space=space).space))


def test_a_placeholder_of_a_conditional_parameter_is_refused() -> None:
    space = {"opt": OPT, "mom": {**LR, "when": {"opt": ["sgd"]}}}
    with pytest.raises(ValidationError, match="is no parameter of each trial"):
        spec(space=space, job={"run": "x ${{ mom }}", "resources": {"gpus": 1}})


def test_values_in_a_shell_line_are_quoted_and_in_a_command_are_not() -> None:
    evil = {"type": "choice", "values": ["a; rm -rf ~", "$(id)"]}
    by_run = spec(space={"x": evil}, job={"run": "t ${{ x }}", "resources": {"gpus": 1}})
    made = job_of(by_run, "s", 0, {"x": "a; rm -rf ~"})
    assert made.run == "t 'a; rm -rf ~'"
    by_command = spec(
        space={"x": evil}, job={"command": ["t", "--x=${{ x }}"], "resources": {"gpus": 1}}
    )
    assert job_of(by_command, "s", 0, {"x": "$(id)"}).command == ("t", "--x=$(id)")


def test_a_whole_placeholder_keeps_its_type() -> None:
    held = spec(space={"gpus": GPUS}, job={"run": "t", "resources": {"gpus": "${{ gpus }}"}})
    made = job_of(held, "s", 3, {"gpus": 2})
    assert made.resources.gpus == 2
    assert (made.name, made.team, made.hyperparameters) == ("s-t3", "nlp", {"gpus": 2})
    assert made.trial is not None
    assert (made.trial.study_id, made.trial.number) == ("s", 3)


def test_a_parameter_replaces_a_hyperparameter_of_its_name() -> None:
    job = {"run": "t", "resources": {"gpus": 1}, "hyperparameters": {"lr": 9, "dim": 8}}
    made = job_of(spec(job=job), "s", 0, {"lr": 0.01, "opt": "sgd"})
    assert made.hyperparameters == {"lr": 0.01, "dim": 8, "opt": "sgd"}


def test_a_later_part_continues_from_the_newest_checkpoint() -> None:
    job = {"run": "t", "resources": {"gpus": 1}, "checkpoint": {"resume": 300}}
    job["resume_from"] = "base"
    first = job_of(spec(job=job), "s", 0, {"lr": 0.01, "opt": "sgd"})
    assert (first.resume_from, first.checkpoint.resume) == ("base", "300")
    later = job_of(spec(job=job), "s", 0, {"lr": 0.01, "opt": "sgd"}, "s-t0")
    assert (later.resume_from, later.checkpoint.resume) == ("s-t0", "auto")


def test_a_missing_value_is_an_error_of_the_template() -> None:
    held = spec(space={"lr": LR}, job={"run": "t ${{ lr }}", "resources": {"gpus": 1}})
    with pytest.raises(TemplateError, match="lr"):
        job_of(held, "s", 0, {})


def test_parameters_stand_behind_those_that_they_depend_on() -> None:
    space = {"c": {**LR, "when": {"b": ["sgd"]}}, "b": {**OPT, "when": {"a": ["sgd"]}}, "a": OPT}
    assert in_order(spec(space=space).space) == ["a", "b", "c"]


@pytest.mark.parametrize("padding", [0, 20_000])
def test_a_check_tries_few_sets_of_parameters(
    monkeypatch: pytest.MonkeyPatch, padding: int
) -> None:
    made: list[Any] = []
    real = study_job.job_of

    def counted(*given: Any) -> Any:
        made.append(given[3])
        return real(*given)

    monkeypatch.setattr(study_job, "job_of", counted)
    monkeypatch.setattr(study_job, "in_order", lambda space: made.append("order") or list(space))
    space = {f"p{number}": {"type": "choice", "values": [1, 2, 3]} for number in range(100)}
    spec(space=space, job={"command": ["x" * padding], "resources": {"gpus": 1}})
    assert made.count("order") == 1
    assert len(made) == 1 + (1 if padding else 64)


def test_a_placeholder_without_an_end_costs_its_length_and_not_the_square() -> None:
    text = "${{" + " " * 1_000_000
    assert filled(text, "run", lambda _place, _name: 1) == text


def test_a_spec_is_the_same_when_it_is_written_and_read_again() -> None:
    values = [1, 1.0, True, "1", None]
    held = spec(space={"x": {"type": "choice", "values": values}}, start=[{"x": True}])
    again = StudySpec.decode(held.encode())
    assert again == held
    kept = again.space["x"].values  # type: ignore[union-attr]
    assert [type(each) for each in kept] == [type(each) for each in values]
    assert again.start[0]["x"] is True


def test_the_page_shows_a_study_that_is_valid() -> None:
    (text,) = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    held = StudySpec.model_validate(read_document(text).content)
    assert held == StudySpec.model_validate(yaml.safe_load(text))
    assert held.limits.parallel == 8
