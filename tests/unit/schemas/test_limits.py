"""What is refused because no consumer could bear it, with the field's name; and what is cut."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from gangline_schemas.base import FieldError, field_errors
from gangline_schemas.checkpoint import RankManifest
from gangline_schemas.events.quota import RequestRefused
from gangline_schemas.events.requests import JobSubmitted
from gangline_schemas.events.steps import WorkerStep
from gangline_schemas.events.workers import CheckpointShardWritten, NodeJoined
from gangline_schemas.generate import ROOT
from gangline_schemas.job import JobSpec
from gangline_schemas.limits import JSON_DEPTH, MESSAGE_CHARS

HUGE = 10**400


def example(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ROOT / "examples" / f"{name}.json").read_text())
    return found


def refused(model: type[Any], text: str) -> tuple[FieldError, ...]:
    with pytest.raises(ValidationError) as caught:
        model.decode(text)
    return field_errors(caught.value)


def of_spec(field: str) -> str:
    """A job spec with one more field, as JSON text."""
    return f'{{"name":"x","team":"nlp","run":"true","resources":{{"gpus":1}},{field}}}'


def nested(depth: int) -> str:
    return "[" * depth + "]" * depth


@pytest.mark.parametrize(
    ("field", "named", "says"),
    [
        ('"resources":{"gpus":1,"cpus_per_gpu":1e-310}', "resources.cpus_per_gpu", "0.001"),
        ('"resources":{"gpus":1,"memory_per_gpu_gb":1e-9}', "resources.memory_per_gpu_gb", "0.001"),
        ('"expected_runtime_hours":1e-9', "expected_runtime_hours", "0.0001"),
        ('"max_runtime_hours":1e-320', "max_runtime_hours", "0.0001"),
        (f'"hyperparameters":{{"steps":{HUGE}}}', "hyperparameters", "steps is a whole number"),
        ('"hyperparameters":{"clip":NaN}', "hyperparameters", "clip is not a finite number"),
        ('"hyperparameters":{"a":[1e999]}', "hyperparameters", "a.0 is not a finite number"),
        ('"hyperparameters":{"a":-Infinity}', "hyperparameters", "give it as text"),
        (f'"hyperparameters":{{"a":{nested(197)}}}', "hyperparameters", "deeper than 32 levels"),
        ('"purpose":"a\\u001b[2Jb"', "purpose", "control characters"),
        (f'"checkpoint":{{"keep":{{"every":{HUGE}}}}}', "checkpoint.keep.every", "less than"),
    ],
)
def test_a_spec_that_a_service_could_not_bear_names_the_field(
    field: str, named: str, says: str
) -> None:
    (error,) = refused(JobSpec, of_spec(field))
    assert error.field == named
    assert says in error.message


def test_the_deepest_hyperparameters_are_read_and_written() -> None:
    spec = JobSpec.decode(of_spec(f'"hyperparameters":{{"a":{nested(JSON_DEPTH)}}}'))
    assert JobSpec.decode(spec.encode()) == spec


def test_a_name_of_half_a_character_is_refused_wherever_it_was_parsed() -> None:
    raw = {"name": "x", "team": "nlp", "run": "true", "resources": {"gpus": 1}}
    for value in ({"\ud800": 1}, {"a": {"\ud800": 1}}, {"a": "\ud800"}):
        with pytest.raises(ValidationError, match="hyperparameters"):
            JobSpec.model_validate(raw | {"hyperparameters": value})


@pytest.mark.parametrize(
    "changes",
    [
        {"cpus": 1e307},
        {"memory_gb": 1e307},
        {"rendezvous_ports": [0]},
        {"rendezvous_ports": [70_000]},
        {"gpus": [{"index": 0, "model": "", "memory_gb": 1}]},
        {"gpus": [{"index": 10**30, "model": "cpu", "memory_gb": 1}]},
        {"gpus": [{"index": 0, "model": "cpu", "memory_gb": 1}] * 2},
        {"address": ""},
        {"hostname": "a\x1b]0;b"},
    ],
)
def test_a_node_that_cannot_be_is_refused(changes: dict[str, Any]) -> None:
    told = example("node.joined")
    found = refused(NodeJoined, json.dumps({"node": told["node"] | changes}))
    assert found[0].field.startswith(f"node.{next(iter(changes))}")


def test_a_node_without_gpus_may_join() -> None:
    told = example("node.joined")
    assert NodeJoined.decode(json.dumps({"node": told["node"] | {"gpus": []}})).node.gpus == ()


@pytest.mark.parametrize("field", ["step", "time_ms"])
def test_steps_and_times_are_numbers_that_everybody_can_add(field: str) -> None:
    told = example("worker.step")
    found = refused(WorkerStep, json.dumps(told | {field: [HUGE] * len(told["step"])}))
    assert found[0].field == f"{field}.0"


def test_a_save_takes_no_longer_than_time_does() -> None:
    told = example("checkpoint.shard.written")
    assert refused(CheckpointShardWritten, json.dumps(told | {"write_s": 1e308}))[0].field == (
        "write_s"
    )


def test_shapes_are_small_enough_to_multiply() -> None:
    piece = {
        "name": "w", "dtype": "uint8", "global_shape": [1], "start": [0], "shape": [1],
        "byte_offset": 0, "size_bytes": 1,
    }  # fmt: skip
    shard = {"key": "rank-00000.bin", "size_bytes": 1, "xxh3": "0" * 32}
    manifest = {"job_id": "j", "attempt": 1, "step": 1, "rank": 0, "world_size": 1, "shard": shard}
    for shape in ([int("9" * 4300)], [1] * 65):
        text = json.dumps(manifest | {"tensors": [piece | {"shape": shape}]})
        assert refused(RankManifest, text)[0].field.startswith("tensors.0.shape")


def test_of_a_million_wrong_parts_the_first_is_named() -> None:
    told = example("worker.step") | {"step": ["x"] * 300_000}
    assert [error.field for error in refused(WorkerStep, json.dumps(told))] == ["step.0"]
    spec = {"name": "x", "team": "nlp", "run": "true", "resources": {"gpus": 1}}
    for field, value in (("env", {f"A{n}": 1 for n in range(100_000)}), ("command", [1] * 100_000)):
        text = json.dumps({"job_id": "j", "spec": spec | {field: value}})
        assert len(refused(JobSubmitted, text)) == 1


def test_unknown_fields_are_named_up_to_a_hundred() -> None:
    with pytest.raises(ValidationError) as caught:
        JobSpec.model_validate_json(
            json.dumps({f"unknown{number}": 1 for number in range(5000)} | {"name": "x"})
        )
    assert len(field_errors(caught.value, model=JobSpec)) == 100


def test_a_long_sentence_of_a_service_is_cut() -> None:
    said = RequestRefused(request="job.submitted", target="x", reason="a" * 10_000)
    assert len(said.reason) == MESSAGE_CHARS
    assert said.reason.endswith("aaa...")
    assert RequestRefused.decode(said.encode()) == said


def test_the_place_of_an_error_is_cut() -> None:
    spec = {"name": "x", "team": "nlp", "run": "true", "resources": {"gpus": 1}}
    (error,) = refused(JobSpec, json.dumps(spec | {"env": {"K" * 1_000_000: 5}}))
    assert len(error.field) <= 256
