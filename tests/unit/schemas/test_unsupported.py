"""What is said in a job file and cannot be done is refused with the way out."""

from __future__ import annotations

from typing import Any

import pytest

from gangline_schemas.job import JobSpec
from gangline_schemas.unsupported import cannot_do


def job(**fields: Any) -> JobSpec:
    base = {"name": "a", "team": "nlp", "resources": {"gpus": 2}}
    return JobSpec.model_validate(base | fields)


@pytest.mark.parametrize(
    ("fields", "field", "way_out"),
    [
        ({"image": "https://nvcr.io/pytorch"}, "image", "is not"),
        ({"strategy": "deepspeed"}, "strategy", "leave strategy out"),
    ],
)
def test_a_field_that_does_nothing_is_refused(
    fields: dict[str, Any], field: str, way_out: str
) -> None:
    reason = cannot_do(job(run="true", **fields))
    assert reason is not None
    assert reason.startswith(f"{field}: ")
    assert way_out in reason


@pytest.mark.parametrize(
    ("command", "launcher"),
    [
        ({"command": ["torchrun", "--nproc-per-node", "2", "train.py"]}, "torchrun"),
        ({"command": ["/opt/venv/bin/accelerate", "launch", "train.py"]}, "accelerate"),
        ({"command": ["python3.11", "-u", "-m", "torch.distributed.run", "x.py"]}, "python -m"),
        ({"command": ["env", "A=1", "mpirun", "-n", "2", "x"]}, "mpirun"),
        ({"run": "deepspeed train.py"}, "deepspeed"),
        ({"run": "cd src && OMP_NUM_THREADS=1 exec torchrun train.py"}, "torchrun"),
        ({"run": "set -e; torchrun train.py"}, "torchrun"),
        ({"run": "set -e\ntorchrun train.py"}, "torchrun"),
        ({"run": "if true; then torchrun train.py; fi"}, "torchrun"),
    ],
)
def test_a_launcher_of_ranks_is_refused(command: dict[str, Any], launcher: str) -> None:
    reason = cannot_do(job(**command))
    assert reason is not None
    assert f"{next(iter(command))}: {launcher}" in reason
    assert "would start once on each rank" in reason


@pytest.mark.parametrize(
    "command",
    [
        {"command": ["python", "torchrun.py"]},
        {"command": ["python", "train.py", "--launcher", "torchrun"]},
        {"command": ["python", "-m", "gangline_worker.training"]},
        {"run": "echo torchrun deepspeed; python train.py"},
        {"run": "python train.py --note 'torchrun && deepspeed'"},
        {"run": "an 'unbalanced quote torchrun"},
        {"run": "pip list | grep accelerate"},
    ],
)
def test_other_commands_are_not(command: dict[str, Any]) -> None:
    assert cannot_do(job(**command)) is None
