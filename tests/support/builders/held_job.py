"""Jobs that run until the test lets them go: a test owns its time, on any machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gangline_schemas.job import JobSpec
from support.harnesses.log_watch import PACED

LONGEST_HOURS = 0.1
"""A job whose test died ends by itself."""

_REPORTER = """
import os, sys, time
from gangline_worker import flush, report, should_stop
step = 0
while not os.path.exists(sys.argv[1]) and not should_stop():
    step += 1
    report({"loss": 1.0 / step}, step)
    if step % 10 == 0:
        print("step", step)
    time.sleep(0.02)
flush()
print("last step", step)
"""


def held(gate: Path) -> dict[str, Any]:
    """Fields of a job whose ranks do nothing until the file `gate` appears."""
    return {"run": f"while [ ! -e {gate} ]; do sleep 0.1; done", **_bounded()}


def reporting(gate: Path) -> dict[str, Any]:
    """Fields of a job whose ranks report a step about each 20 ms until `gate` appears."""
    return {"command": ["python", "-c", _REPORTER, str(gate)], **_bounded()}


def training(gate: Path, pause_s: float | None = None) -> dict[str, Any]:
    """Fields of a job that trains, a step after each pause, until `gate` appears.

    `pause_s`: None is that of paced.py.
    """
    pause = {} if pause_s is None else {"PAUSE_S": str(pause_s)}
    return {
        "command": PACED,
        "env": {**pause, "UNTIL": str(gate)},
        "hyperparameters": {"steps": 1_000_000},
        **_bounded(),
    }


def plain_spec(name: str, team: str, gpus: int, **fields: Any) -> JobSpec:
    """A spec without training."""
    return JobSpec.model_validate(
        {
            "name": name,
            "team": team,
            "resources": {"gpus": gpus, "memory_per_gpu_gb": 0.1},
            "stop_grace_seconds": 5,
        }
        | fields
    )


def _bounded() -> dict[str, Any]:
    return {"max_runtime_hours": LONGEST_HOURS}
