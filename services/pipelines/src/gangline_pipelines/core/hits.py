"""Whether the cache has what a step leaves; and why not."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

from gangline_pipelines.core.graph import Instance
from gangline_pipelines.core.model import Kept, Last, StepRun
from gangline_pipelines.core.naming import changes
from gangline_schemas.memory import REMEMBERED

RESUMABLE = REMEMBERED - timedelta(days=1)
"""So long after its end a job counts as one that others start from; then services forget it."""


def find(  # noqa: PLR0911 - one for each reason
    instance: Instance,
    step: StepRun,
    last: Last | None,
    kept: Kept | None,
    parts: Mapping[str, str],
) -> tuple[Kept | None, str]:
    """The outputs that the cache has for a step, if it may be taken from there; and why."""
    if not instance.spec.cache:
        return None, "it has cache: false"
    if not instance.spec.outputs:
        return None, "it has no outputs to keep"
    image = None if instance.spec.job is None else instance.spec.job.image
    if image is not None and "@" not in image:
        return None, f"its image {image} is a tag, which may have moved; name it by its digest"
    if step.why:
        return None, step.why
    if kept is not None:
        return kept, f"equal to {kept.run_id}"
    if last is None:
        return None, "it did not run before"
    changed = ", ".join(changes(last.parts, parts))
    if not changed:
        return None, "its outputs are not kept"
    return None, f"changed since {last.run_id}: {changed}"


def not_resumable(kept: Kept, now: datetime) -> str | None:
    """Why no job can start from the checkpoint of the job that made these outputs, as far as known.

    Whether the checkpoint is still in the store is seen with the outputs.
    """
    if kept.saved_key is None:
        return f"no checkpoint of {kept.job_id} is known, and another step starts from it"
    if now - kept.at >= RESUMABLE:
        return f"{kept.job_id} ended too long ago for another step to start from its checkpoint"
    return None
