"""The run that validates a checkpoint, made from the spec of the job that saved it."""

from __future__ import annotations

from gangline_schemas.artifacts import JobArtifacts
from gangline_schemas.job import JobSpec

LONGEST_HOURS = 1.0
_NAME_CHARS = 63


def validation_of(spec: JobSpec, job_id: str, step: int) -> JobSpec:
    """The same program on a gang of the same size, which loads this step, compares and ends."""
    policy = spec.checkpoint.model_copy(update={"resume": str(step), "promote": "off"})
    return spec.model_copy(
        update={
            "name": f"validate-{spec.name}"[:_NAME_CHARS].rstrip("-"),
            "resume_from": job_id,
            "checkpoint": policy,
            "validates": True,
            "max_runtime_hours": min(spec.max_runtime_hours or LONGEST_HOURS, LONGEST_HOURS),
            "expected_runtime_hours": None,
            "notify": (),
            "trial": None,  # its reports are no results
            "artifacts": _inputs_alone(spec.artifacts),
            "code_diff": None,
        }
    )


def _inputs_alone(artifacts: JobArtifacts | None) -> JobArtifacts | None:
    """A validation leaves no outputs."""
    return None if artifacts is None else artifacts.model_copy(update={"outputs": {}})
