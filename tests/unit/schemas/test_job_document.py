"""A job file's text: lines of fields, hostile texts, and specs written as files."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from gangline_schemas.base import field_errors
from gangline_schemas.job import JobSpec
from gangline_schemas.job_file import JobFileError, read_document, write_document

FILE = """\
# what it is
name: llama
team: nlp
command:
  - python
  - train.py
resources:
  gpus: 0
  gpuType: [h100]
checkpointPolicy: {interval_minutes: -1}
notify:
  - on: [failed]
    webhook: Not Good
"""


def test_each_wrong_field_has_its_line() -> None:
    document = read_document(FILE)
    with pytest.raises(ValidationError) as wrong:
        JobSpec.model_validate(document.content)
    found = {item.field: document.line(item.field) for item in field_errors(wrong.value)}
    assert found == {
        "resources.cpus": 7, "resources.memory_gb": 7, "checkpoint.interval_minutes": 10,
        "notify.0.webhook": 13,
    }  # fmt: skip
    assert document.line("resources.gpu_type") == 9
    assert document.line("resources.workers") == 7, "of what is around a field that is missing"
    assert document.line("seed") is None


@pytest.mark.parametrize(
    ("text", "said", "line"),
    [
        ("", "must hold fields", None),
        ("- a", "must hold fields", None),
        ("name: a\nname: b", "name is given twice", 2),
        ("a: [1\nb: 2", "is not YAML", 2),
        ("a: &a [*a]", "an alias stands for itself", 1),
        ("[" * 5000, "brackets", None),
        ("a: !!python/object/apply:os.system [id]", "is not YAML", 1),
        ("x" * 600_000, "characters; at most", None),
    ],
)
def test_a_text_that_is_no_job_file_is_refused(text: str, said: str, line: int | None) -> None:
    with pytest.raises(JobFileError, match=said) as refused:
        read_document(text)
    assert refused.value.line == line


def test_aliases_that_stand_for_billions_of_values_are_refused_at_once() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    with pytest.raises(JobFileError, match="more than 50,000 values"):
        read_document("\n".join(lines))


def test_a_spec_written_as_a_file_is_read_as_the_same_spec() -> None:
    spec = JobSpec.model_validate({
        "name": "a", "team": "t", "run": "echo on\nsleep 1", "resources": {"gpus": 2},
        "env": {"A": "no", "B": "3e-4", "C": "true", "D": "10:30", "E": "null"},
        "hyperparameters": {"lr": 3e-05, "steps": 10, "on": [1, 2]}, "priority": 20,
        "notify": [{"on": ["failed"], "webhook": "ops"}], "checkpoint": {"interval_minutes": 5},
    })  # fmt: skip
    text = write_document(spec)
    assert JobSpec.model_validate(read_document(text).content) == spec
    assert "strategy" not in text, "defaults are left out"
