"""Names that are derived: of runs, of the jobs of steps, and the keys of the cache."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from gangline_schemas.base import NAME_CHARS
from gangline_schemas.job import JobSpec
from gangline_schemas.models import AliasedVersion

_READABLE_CHARS = 40
_HASH_CHARS = 12
_STUDY_CHARS = 34
_COMMAND = (
    "command", "run", "env", "hyperparameters", "strategy", "parallel", "purpose", "secrets",
    "resume_from",
)  # fmt: skip
"""Fields of a job that are its command, for the key."""


def digest(value: Any) -> str:
    """128 bits in hex: equal for equal JSON values."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def pipeline_key(team: str, name: str) -> str:
    """The key of a pipeline in the state."""
    return f"{team}/{name}"


def run_id(team: str, pipeline: str, trigger: str, subject: str) -> str:
    """The id of a run: the same cause gives the same run."""
    return (
        f"{pipeline[:_READABLE_CHARS]}-{digest([team, pipeline, trigger, subject])[:_HASH_CHARS]}"
    )


def job_id(run: str, step: str, tries: int) -> str:
    """The id of a step's job."""
    whole = f"{run}-{step}-{tries}"
    if len(whole) <= NAME_CHARS:
        return whole
    return f"{whole[:_READABLE_CHARS]}-{digest([run, step, tries])[:_HASH_CHARS]}"


def study_id(run: str, step: str, tries: int) -> str:
    """The id of a step's study: shorter, as the ids of its jobs begin with it."""
    return f"{run[:_STUDY_CHARS]}-{digest([run, step, tries])[:_HASH_CHARS]}"


def key_parts(
    job: JobSpec, inputs: Mapping[str, str], start: AliasedVersion | None
) -> dict[str, str]:
    """The digests of what a step's outputs depend on, by name.

    `inputs`: digests of artifacts by the names of inputs. `start`: the version that it starts from,
    of which the checkpoint counts, and not its number or alias. Not in the key: the number of GPUs,
    the priority, and all else that says where and when a job runs.
    """
    data = job.model_dump(mode="json", exclude_defaults=True, include=set(_COMMAND))
    if start is not None:
        del data["resume_from"]
    parts = {"command": digest(data), "outputs": digest(job.artifacts and job.artifacts.outputs)}
    code = job.code_bundle or job.code_ref
    named = {"code": code, "image": job.image, "seed": job.seed, "data": job.data_snapshot}
    parts |= {name: digest(value) for name, value in named.items() if value is not None}
    if start is not None:
        parts["resume"] = digest(start.checkpoint.place)
    return parts | {f"in.{name}": value for name, value in inputs.items()}


def cache_key(parts: Mapping[str, str]) -> str:
    """The key of these parts."""
    return digest(dict(parts))


def changes(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[str, ...]:
    """The names of the parts that differ."""
    return tuple(sorted(name for name in {*before, *after} if before.get(name) != after.get(name)))
