"""The versions that requests are about, and refusals."""

from __future__ import annotations

from gangline_registry.core.model import Registered, version_key
from gangline_registry.core.state import RegistryPlan, RegistryState
from gangline_schemas.models import CheckpointOf


def promoted(state: RegistryState, job_id: str, step: int | None) -> CheckpointOf | None:
    """The promoted checkpoint of a step, or the newest; None: none is known. Cost: the job's."""
    if step is None:
        step = max(state.steps.get(job_id, ()), default=None)
    found = state.checkpoints.get(f"{job_id}/{step}")
    return None if found is None else found.checkpoint


class Refusal(Exception):
    """A request is refused; the message says why and the way out."""


def version_of(plan: RegistryPlan, team: str, model: str, version: int) -> Registered:
    """A version that is known. Raises Refusal."""
    found = plan.state.versions.get(version_key(team, model, version))
    if found is None:
        raise Refusal(
            f"version {version} of {model} is not registered here; "
            f"`gangline models register {model} --job JOB` registers a checkpoint"
        )
    return found
