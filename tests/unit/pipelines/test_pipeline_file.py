"""The pipeline file: bad input is refused with the field, and by the command line with the line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from gangline.errors import CliError
from gangline.pipeline_file import read_pipeline_file
from gangline_pipelines.core.checks import problems
from gangline_schemas import pipeline_checks
from gangline_schemas.artifacts import DATA_OF_INPUT
from gangline_schemas.base import field_errors
from gangline_schemas.pipeline_file import PipelineSpec
from gangline_schemas.yaml_core import load_yaml
from support.builders.pipelines import job

NAMES = [f"o{number}" for number in range(64)]
GOOD = {"a": {"job": job("a"), "out": {"x": "folder", "s": "score"}}}


def errors_of(content: dict[str, Any]) -> str:
    try:
        spec = PipelineSpec.model_validate({"name": "p", "team": "nlp", **content})
    except ValidationError as error:
        found = [*field_errors(error, model=PipelineSpec)]
    else:
        found = problems(spec)
    return "; ".join(f"{one.field}: {one.message}" for one in found)


def test_a_good_pipeline_has_no_problem() -> None:
    assert errors_of({"steps": GOOD}) == ""


def test_the_page_s_pipeline_of_shipped_steps_is_right_and_trains_on_what_it_prepares() -> None:
    page = Path(__file__).parents[3] / "docs" / "reference" / "pipeline-file.md"
    content = load_yaml(page.read_text().split("```yaml\n")[-1].split("```")[0])
    assert errors_of(content) == ""
    train = content["steps"]["train"]
    named = train["job"]["hyperparameters"]["data"].removeprefix(DATA_OF_INPUT)
    assert train["in"][named] == "prepare.snapshot"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"steps": {}}, "steps: "),
        ({"steps": {"A": {"job": job()}}}, "must be 1 to 63 of a-z"),
        ({"steps": {"__proto__": {"job": job()}}}, "must be 1 to 63 of a-z"),
        ({"steps": {"a": {}}}, "give exactly one of job and study"),
        ({"steps": {"a": {"job": job("${{ best.b.lr }}")}}}, "there is no step b with a study"),
        ({"steps": {"a": {"job": job(), "inn": {}}}}, "steps.a.inn: there is no such field"),
        ({"steps": {"a": {"job": {**job(), "cmd": 1}}}}, "steps.a.job.cmd: there is no such"),
        ({"steps": {"a": {"job": {**job(), "team": "vision"}}}}, "must be the pipeline's, nlp"),
        ({"steps": {"a": {"job": job(), "in": {"x": "b.y"}}}}, "steps.a.in.x: there is no step b"),
        ({"steps": {"a": {"job": job(), "in": {"x": "a"}}}}, "steps.a.inputs.x: "),
        (
            {"steps": {**GOOD, "b": {"job": job(), "in": {"y": "a.z or none"}}}},
            "steps.b.in.y: step a has no output z; its outputs are: x, s",
        ),
        (
            {"steps": {**GOOD, "b": {"job": job(), "in": {"y": "a.z"}}}},
            "steps.b.in.y: step a has no output z; its outputs are: x, s",
        ),
        ({"steps": {"a": {"job": job(), "resume": "m@"}}}, "or NAME@ALIAS of a registered model"),
        ({"steps": {"a": {"job": job(), "resume": "m@v3"}}}, "MLflow keeps these"),
        ({"steps": {"a": {"job": job(), "resume": "b"}}}, "steps.a.resume: there is no step b"),
        ({"steps": {"a": {"job": job(), "in": {"x": "a.y"}, "out": ["y"]}}}, "a -> a"),
        (
            {
                "steps": {
                    "a": {"job": job(), "in": {"x": "c.y"}, "out": ["y"]},
                    "b": {"job": job(), "in": {"x": "a.y"}, "out": ["y"]},
                    "c": {"job": job(), "in": {"x": "b.y"}, "out": ["y"]},
                }
            },
            "the steps wait for each other: a -> ",
        ),
        ({"steps": {"a": {"job": job(), "after": ["b"]}}}, "steps.a.after: there is no step b"),
        ({"steps": {**GOOD, "b": {"job": job(), "when": "a.x > 1"}}}, "a.x is no score"),
        ({"steps": {**GOOD, "b": {"job": job(), "when": "a.s > high"}}}, "with no number"),
        ({"steps": {**GOOD, "b": {"job": job(), "when": "a.s"}}}, "steps.b.when: must be"),
        ({"steps": {**GOOD, "b": {"job": job(), "when": "params.q == 1"}}}, "no parameter q"),
        ({"steps": {"a": {"job": job("${{ params.lr }}")}}}, "there is no value 'params.lr'"),
        ({"steps": {"a": {"job": job("${{ item }}")}}}, "there is no value 'item'"),
        ({"steps": {"a": {"job": job(), "each": [1] * 501}}}, "steps.a.each: "),
        (
            {"steps": {f"s{number}": {"job": job(), "each": [1] * 500} for number in range(5)}},
            "are 2,500 with all items; at most 2,000",
        ),
        (
            {
                "steps": {
                    "a": {"job": job(), "each": [1] * 401, "out": NAMES[:5]},
                    "b": {"job": job(), "in": {name: f"a.{name}" for name in NAMES[:5]}},
                }
            },
            "steps.b.in: are 2,005 with all items; at most 2,000",
        ),
        (
            {
                "steps": {
                    name: {"job": job(), "each": [1] * 500, "out": NAMES} for name in ("a", "b")
                }
            },
            "steps: have 64,000 outputs with all items; at most 50,000",
        ),
        (
            {
                "steps": {
                    "a": {"job": job(), "each": [1] * 300, "out": ["x"]},
                    "b": {"job": job(), "each": [1] * 300, "in": {"x": "a.x"}},
                }
            },
            "steps: have 90,000 inputs with all items; at most 50,000",
        ),
        (
            {"steps": {"a": {"job": job("x" * 20_000), "each": [1] * 500}}},
            "with all items; at most 4,194,304",
        ),
        ({"steps": {f"s{number}": {"study": {}} for number in range(101)}}, "101 are studies"),
        (
            {"steps": {"a": {"job": job(), "each": [1]}, "a-0": {"job": job()}}},
            "is also item 0 of a",
        ),
        ({"steps": {"a" * 62: {"job": job(), "each": [1]}}}, "a name has at most 63 characters"),
        ({"steps": {"params": {"job": job()}}}, "is a word of conditions"),
        ({"steps": {"a": {"job": job(image="X")}}}, "image: X: is not an image like"),
        ({"steps": GOOD, "triggers": {"t": {}}}, "give exactly one of"),
        (
            {"steps": GOOD, "triggers": {"t": {"snapshot": "a", "drift": "m"}}},
            "give exactly one of",
        ),
        ({"steps": GOOD, "triggers": {"t": {"schedule": "61 * * * *"}}}, "Bad minute"),
        ({"steps": GOOD, "triggers": {"t": {"schedule": "* * * * * *"}}}, "has five fields"),
        ({"steps": GOOD, "triggers": {"t": {"schedule": "0 0 31 2 *"}}}, "schedule: "),
        (
            {"steps": GOOD, "triggers": {"t": {"schedule": "0 3 * * *", "zone": "Mars"}}},
            "triggers.t.zone: there is no zone 'Mars'",
        ),
        (
            {"steps": GOOD, "triggers": {"t": {"snapshot": "a", "params": {"q": 1}}}},
            "triggers.t.params.q: is no parameter",
        ),
        ({"steps": GOOD, "params": {"lr": float("nan")}}, "params.lr"),
        (
            {"steps": {"a": {"job": job("x", env={"TOKEN": "sk-" + "a" * 48})}}},
            "looks like a secret",
        ),
        ({"steps": GOOD, "limits": {"hours": 0}}, "limits.hours: "),
    ],
)
def test_bad_input_names_the_field(content: dict[str, Any], words: str) -> None:
    assert words in errors_of(content)


def test_many_wrong_references_cost_no_more_than_a_few(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[int] = []

    def counted(_name: str, known: list[str], _most: int) -> list[str]:
        compared.append(len(known))
        return []

    monkeypatch.setattr(pipeline_checks, "get_close_matches", counted)
    wrong = {"job": job(), "in": {f"i{number}": "none.x" for number in range(64)}}
    content = {"name": "p", "team": "nlp", "steps": {f"s{place}": wrong for place in range(500)}}
    found = problems(PipelineSpec.model_validate(content))
    assert len(found) == pipeline_checks.PROBLEMS_SHOWN
    assert sum(compared) <= pipeline_checks.PROBLEMS_SHOWN * pipeline_checks.NAMES_COMPARED


def test_the_command_line_names_file_line_and_field(tmp_path: Path) -> None:
    file = tmp_path / "pipeline.yaml"
    file.write_text(
        "name: p\n"
        "team: nlp\n"
        "steps:\n"
        "  a:\n"
        "    job: {command: [x], resources: {gpus: 1}}\n"
        "    in:\n"
        "      data: b.y\n"
    )
    with pytest.raises(CliError) as caught:
        read_pipeline_file(file)
    assert f"{file}:7: steps.a.in.data: there is no step b" in caught.value.message


def test_an_error_in_a_step_s_job_file_names_that_file_and_its_line(tmp_path: Path) -> None:
    job = tmp_path / "train.yaml"
    job.write_text("command: [x]\nresources:\n  gpus: 1\n  gpu_count: 1\n")
    file = tmp_path / "pipeline.yaml"
    file.write_text("name: p\nteam: nlp\nsteps:\n  a: {job: train.yaml}\n")
    with pytest.raises(CliError) as caught:
        read_pipeline_file(file)
    message = caught.value.message
    assert f"{job}:4: steps.a.job.resources.gpu_count: there is no such field" in message
    job.write_text("command: [x]\nresources: {gpus: 1}\n")
    read = read_pipeline_file(file)
    refused = read.located(CliError("steps.a.job.resources.gpus: must be at most 8"))
    assert refused.message.startswith(f"{job}:2: steps.a.job.resources.gpus: ")


def test_a_job_may_be_a_file_and_workdirs_are_packed_once(tmp_path: Path) -> None:
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "code.py").write_text("print()")
    (tmp_path / "jobs" / "a.yaml").write_text(
        "name: any\ncommand: [python, code.py]\nworkdir: .\nresources: {gpus: 1}\n"
    )
    file = tmp_path / "pipeline.yaml"
    file.write_text(
        "name: p\nteam: nlp\nsteps:\n  a: {job: jobs/a.yaml}\n  b: {job: jobs/a.yaml}\n"
    )
    read = read_pipeline_file(file)
    assert [step.job.name for step in read.spec.steps.values()] == ["a", "b"]
    (bundle,) = read.bundles
    assert {step.job.code_bundle for step in read.spec.steps.values()} == {bundle.digest}
    file.write_text("name: p\nteam: nlp\nsteps:\n  a: {job: jobs/b.yaml}\n")
    with pytest.raises(CliError, match=r"4: steps.a.job: there is no file jobs/b.yaml"):
        read_pipeline_file(file)


def test_the_example_is_valid() -> None:
    examples = Path(__file__).parents[3] / "examples"
    assert problems(read_pipeline_file(examples / "pipeline" / "pipeline.yaml").spec) == []
