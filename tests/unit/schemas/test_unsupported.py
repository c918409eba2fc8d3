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
        ({"image": "https://nvcr.io/pytorch", "run": "true"}, "image", "is not"),
        (
            {"strategy": "deepspeed", "command": ["python", "-m", "gangline_worker.training"]},
            "strategy",
            "give fsdp or ddp",
        ),
        (
            {"strategy": "deepspeed", "run": "cd x; python -m gangline_worker.training"},
            "strategy",
            "deepspeed.initialize",
        ),
    ],
)
def test_a_field_that_does_nothing_is_refused(
    fields: dict[str, Any], field: str, way_out: str
) -> None:
    reason = cannot_do(job(**fields))
    assert reason is not None
    assert reason.startswith(f"{field}: ")
    assert way_out in reason


def test_a_program_of_the_users_own_may_call_deepspeed() -> None:
    assert cannot_do(job(strategy="deepspeed", command=["python", "train.py"])) is None


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
        ({"run": "if ! torchrun train.py; then exit 3; fi"}, "torchrun"),
        ({"run": "nsys profile -o out torchrun train.py"}, "torchrun"),
        ({"run": "bash -euo pipefail -c 'cd src; torchrun train.py'"}, "torchrun"),
        ({"run": "cat > note <<EOF\nit's here\nEOF\ntorchrun train.py"}, "torchrun"),
        ({"command": ["bash", "-c", "torchrun train.py"]}, "torchrun"),
        ({"command": ["/bin/sh", "-ec", "exec env A=1 accelerate launch x.py"]}, "accelerate"),
        ({"command": ["bash", "-c", "bash -lc 'torchrun train.py'"]}, "torchrun"),
        ({"command": ["uv", "run", "torchrun", "train.py"]}, "torchrun"),
        ({"command": ["uv", "run", "--with", "x", "-m", "torch.distributed.run"]}, "python -m"),
        ({"command": ["poetry", "run", "accelerate", "launch", "x.py"]}, "accelerate"),
        ({"command": ["conda", "run", "-n", "a", "torchrun", "x.py"]}, "torchrun"),
        ({"command": ["numactl", "-N", "0", "--membind=0", "torchrun", "x.py"]}, "torchrun"),
        ({"command": ["nsys", "profile", "-t", "cuda,nvtx", "torchrun", "x.py"]}, "torchrun"),
        ({"command": ["sudo", "-E", "-u", "ml", "torchrun", "x.py"]}, "torchrun"),
        ({"command": ["timeout", "-k", "5", "1h", "mpirun", "-n", "2", "x"]}, "mpirun"),
        ({"command": ["taskset", "-c", "0-3", "deepspeed", "x.py"]}, "deepspeed"),
        ({"command": ["env", "-u", "B", "A=1", "nice", "-n", "5", "torchrun"]}, "torchrun"),
        ({"command": ["python", "-X", "dev", "-um", "torch.distributed.run"]}, "python -m"),
        ({"command": ["python", "/opt/venv/bin/torchrun", "train.py"]}, "torchrun"),
        ({"command": ["singularity", "exec", "--nv", "a.sif", "torchrun", "x.py"]}, "torchrun"),
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
        {"run": "command -v torchrun; which torchrun; python train.py"},
        {"run": "echo then torchrun"},
        {"run": "cat > run.sh <<'EOF'\ntorchrun train.py\nEOF\npython train.py"},
        {"run": "bash -c 'echo torchrun; python train.py'"},
        {"run": "# torchrun train.py\npython train.py"},
        {"run": "accelerate config default; python train.py"},
        {"command": ["bash", "-c", "python train.py --launcher torchrun", "torchrun"]},
        {"command": ["bash", "torchrun.sh"]},
        {"command": ["bash", "-o", "pipefail", "torchrun"]},
        {"command": ["nsys", "profile", "-o", "torchrun", "python", "train.py"]},
        {"command": ["nsys", "stats", "torchrun"]},
        {"command": ["uv", "run", "--with", "deepspeed", "python", "train.py"]},
        {"command": ["uv", "pip", "install", "deepspeed"]},
        {"command": ["sudo", "-u", "mpirun", "python", "train.py"]},
        {"command": ["timeout", "torchrun", "python", "train.py"]},
        {"command": ["python", "-c", "print('torchrun')", "torchrun"]},
        {"command": ["python", "-W", "ignore", "train.py", "-m", "torch.distributed.run"]},
        {"command": ["python", "/srv/torchrun/train.py"]},
        {"command": ["env", "torchrun=1", "python", "train.py"]},
        {"command": ["my-program", "torchrun", "train.py"]},
        {"command": ["env"] * 1_024},
        {"command": ["bash", "-c", "bash -c " * 4000]},
        {"run": "; a" * 10_000},
    ],
)
def test_other_commands_are_not(command: dict[str, Any]) -> None:
    assert cannot_do(job(**command)) is None
