"""The job spec: what is accepted, and that every refusal names the field and the way out."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from gangline_schemas.base import FieldError, field_errors
from gangline_schemas.job import JobSpec
from gangline_schemas.secrets import holds_secret, is_secret_name, redact
from gangline_schemas.team_limits import TeamConfig

MINIMAL: dict[str, Any] = {
    "name": "a",
    "team": "nlp",
    "command": ["true"],
    "resources": {"gpus": 1},
}
PLANTED = "hf_" + "a1B2" * 9
COUNTS = "resources.gpu_counts"


def elastic(*counts: object, least: int | None = 2, most: int = 8) -> dict[str, Any]:
    return {"resources": {"gpus": most, "min_gpus": least, "gpu_counts": list(counts)}}


def workers(number: int, **resources: object) -> dict[str, Any]:
    return {"resources": {"workers": number, **resources}}


def without_gpus(**resources: object) -> dict[str, Any]:
    return {"resources": {"gpus": 0, "cpus": 2, "memory_gb": 4, **resources}}


def refusal(**changes: Any) -> tuple[str, str]:
    with pytest.raises(ValidationError) as caught:
        JobSpec.model_validate(MINIMAL | changes)
    (error,) = field_errors(caught.value)
    return error.field, error.message


def test_the_minimal_spec_has_the_documented_defaults() -> None:
    spec = JobSpec.model_validate(MINIMAL)
    assert (spec.priority, spec.preemptible, spec.strategy) == (50, False, "custom")
    assert (spec.restart.max, spec.checkpoint.interval_minutes) == (3, 10.0)
    assert spec.checkpoint.keep.latest == 3


@pytest.mark.parametrize(("name", "number"), [("high", 25), ("normal", 50), ("low", 75), (0, 0)])
def test_priorities_may_be_named(name: object, number: int) -> None:
    assert JobSpec.model_validate(MINIMAL | {"priority": name}).priority == number


def test_camel_case_is_accepted() -> None:
    spec = JobSpec.model_validate(
        MINIMAL
        | {
            "codeRef": "abc",
            "dataSnapshot": "corpus@1",
            "checkpointPolicy": {"intervalMinutes": 3, "keep": {"latest": 7}},
        }
    )
    assert (spec.code_ref, spec.data_snapshot) == ("abc", "corpus@1")
    assert (spec.checkpoint.interval_minutes, spec.checkpoint.keep.latest) == (3, 7)


@pytest.mark.parametrize(
    ("changes", "field", "words"),
    [
        ({"resources": {"gpus": -1}}, "resources.gpus", "greater than or equal to 0"),
        ({"resources": {"gpus": 0, "memory_gb": 1}}, "resources.cpus", "is missing"),
        ({"resources": {"gpus": 1, "cpus": 4}}, "resources.cpus", "for jobs without GPUs"),
        (without_gpus(gpu_type="a100"), "resources", "gpu_type is for jobs with GPUs"),
        (without_gpus(workers=2), "resources", "workers is for jobs with GPUs"),
        (without_gpus() | {"parallel": {"shard": 1}}, "", "parallel is for jobs with GPUs"),
        (without_gpus() | {"topology": {"mode": "required"}}, "", "topology with mode required"),
        ({"resources": {"gpus": 2, "min_gpus": 3}}, "resources", "min_gpus (3) is above gpus (2)"),
        (elastic(), COUNTS, "at least 1 item"),
        (elastic(0, 2, 8), f"{COUNTS}.0", "greater than or equal to 1"),
        (elastic("many", 8), f"{COUNTS}.0", "integer"),
        (elastic(2, 8, 4), COUNTS, "must rise and name each count once: [2, 4, 8]"),
        (elastic(2, 4, 4, 8), COUNTS, "must rise and name each count once: [2, 4, 8]"),
        (elastic(1, 8), COUNTS, "goes from 1 to 8; it must begin with min_gpus (2)"),
        (elastic(2, 9), COUNTS, "goes from 2 to 9; it must begin with min_gpus (2) and end with"),
        (elastic(2, 4), COUNTS, "goes from 2 to 4; it must begin with min_gpus (2) and end with"),
        (elastic(8, least=None), COUNTS, "is for elastic jobs: give min_gpus too"),
        (
            {"resources": {}},
            "resources.gpus",
            "is missing: give it, or both workers and gpus_per_worker",
        ),
        ({"resources": {"workers": 2}}, "resources.gpus", "both workers and gpus_per_worker"),
        ({"resources": {"workers": 0, "gpus_per_worker": 2}}, "resources.workers", "equal to 1"),
        (workers(2, gpus=2), "resources", "workers (2) needs gpus_per_worker; for workers of one"),
        (
            workers(2, gpus_per_worker=3, gpus=7),
            "resources",
            "gpus (7) is not workers (2) x gpus_per_worker (3), which is 6; leave out gpus or",
        ),
        (
            workers(20_000 // 3, gpus_per_worker=3),
            "resources.gpus",
            "less than or equal to 16384",
        ),
        (
            {"resources": {"gpus": 7, "gpus_per_worker": 3}},
            "resources",
            (
                "gpus (7) must be a multiple of gpus_per_worker (3), as the GPUs of a worker "
                "lie on one node; give 6 or 9"
            ),
        ),
        (
            {"resources": {"gpus": 2, "gpus_per_worker": 3}},
            "resources",
            (
                "gpus (2) must be a multiple of gpus_per_worker (3), as the GPUs of a worker "
                "lie on one node; give 3"
            ),
        ),
        (
            workers(4, gpus_per_worker=2, min_gpus=3),
            "resources",
            "min_gpus (3) must be a multiple of gpus_per_worker (2)",
        ),
        (
            workers(4, gpus_per_worker=2, min_gpus=2, gpu_counts=[2, 5, 8]),
            "resources",
            "gpu_counts (5) must be a multiple of gpus_per_worker (2)",
        ),
        ({"priority": 101}, "priority", "less than or equal to 100"),
        ({"priority": "urgent"}, "priority", "integer"),
        ({"team": "../etc"}, "team", "must be 1 to 63 of a-z, 0-9 and '-'"),
        ({"name": "UPPER"}, "name", "must be 1 to 63 of a-z, 0-9 and '-'"),
        ({"command": []}, "", "exactly one of 'command' (a list) and 'run'"),
        ({"run": "echo"}, "", "exactly one of 'command' (a list) and 'run'"),
        ({"env": {"RANK": "0"}}, "env", "RANK is set by Gangline"),
        ({"env": {"GANGLINE_JOB_ID": "x"}}, "env", "is set by Gangline"),
        ({"env": {"1X": "0"}}, "env", "not starting with a digit"),
        ({"env": {"BLOB": "x" * 10_000_000}}, "env", "10,000,004 bytes; at most 65,536"),
        ({"env": {"HF_TOKEN": "x"}}, "env", "list its name under 'secrets'"),
        ({"secrets": [PLANTED]}, "secrets", "never their values"),
        ({"checkpoint": {"path": "../../etc"}}, "checkpoint.path", "without '..'"),
        ({"checkpoint": {"path": "a//b"}}, "checkpoint.path", "relative path"),
        ({"checkpoint": {"path": "a b"}}, "checkpoint.path", "relative path"),
        ({"checkpoint": {"path": "/etc"}}, "checkpoint.path", "relative path"),
        ({"checkpoint": {"path": "s3://bucket/../x"}}, "checkpoint.path", "without '..'"),
        ({"checkpoint": {"resume": "latest"}}, "checkpoint.resume", "auto, never or the step"),
        ({"checkpoint": {"resume": -1}}, "checkpoint.resume", "auto, never or the step"),
        ({"checkpoint": {"resume": True}}, "checkpoint.resume", "string"),
        ({"checkpoint": {"interval_minutes": 0}}, "checkpoint.interval_minutes", "equal to 0.0001"),
        ({"unknown_field": 1}, "unknown_field", "there is no such field"),
        ({"hyperparameters": {"x": "y" * 70_000}}, "hyperparameters", "at most 65,536"),
        ({"command": ["a\0b"]}, "", "NUL"),
        ({"version": 2}, "version", "1"),
    ],
)
def test_bad_input_names_the_field(changes: dict[str, Any], field: str, words: str) -> None:
    found, message = refusal(**changes)
    assert found == (field or "(body)")
    assert words in message


@pytest.mark.parametrize("step", [742, "742"])
def test_the_step_to_resume_from_is_written_as_people_write_numbers(step: object) -> None:
    spec = JobSpec.model_validate(MINIMAL | {"checkpoint": {"resume": step}})
    assert spec.checkpoint.resume == "742"


@pytest.mark.parametrize(
    ("changes", "field", "hint"),
    [
        ({"comand": ["x"]}, "comand", "did you mean command?"),
        ({"resources": {"gpus": 1, "gpu": 2}}, "resources.gpu", "did you mean gpus?"),
        (
            {"checkpoint": {"keep": {"lastest": 2}}},
            "checkpoint.keep.lastest",
            "did you mean latest?",
        ),
        (
            {"checkpoint": {"incremental": {"full": 2}}},
            "checkpoint.incremental.full",
            "known are full_every",
        ),
        ({"hyperparameters": {}, "zzz": 1}, "zzz", f"known are {', '.join(JobSpec.model_fields)}"),
    ],
)
def test_a_field_that_there_is_not_is_told_the_one_that_was_meant(
    changes: dict[str, Any], field: str, hint: str
) -> None:
    with pytest.raises(ValidationError) as refused:
        JobSpec.model_validate(MINIMAL | changes)
    [found] = field_errors(refused.value, model=JobSpec)
    assert found.field == field
    assert found.message == f"there is no such field; {hint}"


@pytest.mark.parametrize(
    ("resources", "sizes"),
    [
        ({"gpus": 4}, [4]),
        ({"gpus": 4, "min_gpus": 2}, [2, 3, 4]),
        ({"gpus": 4, "min_gpus": 4}, [4]),
        ({"gpus": 4, "min_gpus": 1, "gpu_counts": [1, 2, 4]}, [1, 2, 4]),
        ({"gpus": 4, "minGpus": 4, "gpuCounts": [4]}, [4]),
        ({"workers": 2, "gpusPerWorker": 3}, [6]),
        ({"workers": 2, "gpus_per_worker": 3, "gpus": 6}, [6]),
        ({"gpus": 8, "gpus_per_worker": 2, "min_gpus": 4}, [4, 6, 8]),
        ({"workers": 4, "gpus_per_worker": 2, "min_gpus": 2, "gpu_counts": [2, 8]}, [2, 8]),
    ],
)
def test_the_sizes_that_a_gang_may_have(resources: dict[str, Any], sizes: list[int]) -> None:
    spec = JobSpec.model_validate(MINIMAL | {"resources": resources})
    assert list(spec.sizes) == sizes
    assert spec.resources.gpus == sizes[-1]
    assert JobSpec.model_validate(spec.model_dump(mode="json")) == spec


@pytest.mark.parametrize(
    "changes",
    [
        {"env": {"ARGS": f"--key {PLANTED}"}},
        {"command": ["train", PLANTED]},
        {"command": [], "run": f"login {PLANTED}"},
        {"hyperparameters": {"note": PLANTED}},
        {"env": {"API_KEY": "ordinary"}},
        {"secrets": [PLANTED]},
        {"command": ["curl", "https://user:hunter2@host/x"]},
    ],
)
def test_a_planted_secret_is_refused_and_never_repeated(changes: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as caught:
        JobSpec.model_validate(MINIMAL | changes)
    shown = str(caught.value) + repr(caught.value) + str(field_errors(caught.value))
    assert PLANTED not in shown
    assert "hunter2" not in shown


def test_a_spec_has_the_same_digest_with_its_diff_and_with_the_digest_of_it() -> None:
    spec = JobSpec.model_validate(MINIMAL | {"code_diff": "+a"})
    assert spec.without_diff().digest() == spec.digest()
    assert spec.without_diff().code_diff is None
    assert spec.digest() != JobSpec.model_validate(MINIMAL | {"code_diff": "+b"}).digest()
    assert spec.digest() != JobSpec.model_validate(MINIMAL).digest()


def test_the_digest_of_a_diff_is_that_of_the_diff_beside_it() -> None:
    digest = JobSpec.model_validate(MINIMAL | {"code_diff": "+a"}).without_diff().code_diff_digest
    JobSpec.model_validate(MINIMAL | {"code_diff": "+a", "code_diff_digest": digest})
    _, message = refusal(code_diff="+b", code_diff_digest=digest)
    assert "code_diff_digest is not the sha256 of code_diff" in message


def test_a_command_is_of_64_kib_at_most_in_all() -> None:
    field, message = refusal(command=["x" * 30_000] * 3)
    assert field == "command"
    assert message == "holds 90,000 bytes; at most 65,536 (put data into the workdir)"


def test_team_guarantee_is_within_the_limit() -> None:
    with pytest.raises(ValidationError, match=r"gpu_guarantee \(9\) is above gpu_limit \(8\)"):
        TeamConfig(team="a", gpu_limit=8, gpu_guarantee=9)


@pytest.mark.parametrize("name", ["HF_TOKEN", "aws_secret_access_key", "DB_PASSWORD", "API_KEY"])
def test_names_that_hold_secrets(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize("name", ["KEYBOARD", "TOKENIZERS_PARALLELISM", "NCCL_DEBUG", "PATH"])
def test_names_that_hold_none(name: str) -> None:
    assert not is_secret_name(name)


@given(st.text(), st.text(min_size=1, max_size=20).filter(lambda s: s not in "[redacted]"))
def test_a_known_secret_is_blacked_out_wherever_it_stands(text: str, secret: str) -> None:
    assert secret not in redact(text + secret + text, [secret]).replace("[redacted]", "")
    assert not holds_secret(redact(f"x {PLANTED} y"))


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(),
        lambda c: st.lists(c) | st.dictionaries(st.text(), c),
        max_leaves=20,
    )
)
def test_any_json_is_either_a_spec_or_a_clear_error(value: Any) -> None:
    assert all(item.field and item.message for item in refusals(value))


def refusals(value: Any) -> tuple[FieldError, ...]:
    try:
        JobSpec.model_validate(value)
    except ValidationError as error:
        return field_errors(error)
    return ()
