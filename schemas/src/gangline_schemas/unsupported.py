"""Requests of a job file that Gangline does not support yet, or that would go wrong.

Such a job is rejected when it is submitted, because a field that is accepted and ignored is found
out late.
"""

from __future__ import annotations

from gangline_schemas.image_reference import ImageReference
from gangline_schemas.job import JobSpec
from gangline_schemas.launchers import launcher_in, launcher_in_text

_TRAINER = "gangline_worker.training"


def cannot_do(spec: JobSpec) -> str | None:
    """Why Gangline cannot run the job as its file says, and the way out; None: it can."""
    if spec.image is not None:
        try:
            ImageReference.parse(spec.image)
        except ValueError as error:
            return f"image: {error}"
    if spec.strategy == "deepspeed" and _TRAINER in " ".join(spec.command or (spec.run or "",)):
        return (
            "strategy: the platform's trainer has no DeepSpeed engine; give fsdp or ddp, or the "
            "command of a program that calls deepspeed.initialize"
        )
    launcher = launcher_of(spec)
    if launcher is not None:
        field = "command" if spec.command else "run"
        return (
            f"{field}: {launcher} would start once on each rank; give the command that it would "
            "start, such as python train.py (RANK, WORLD_SIZE and MASTER_ADDR are set)"
        )
    return None


def launcher_of(spec: JobSpec) -> str | None:
    """The launcher of ranks that the job's command starts; None when it starts none."""
    return launcher_in(spec.command) if spec.command else launcher_in_text(spec.run or "")
