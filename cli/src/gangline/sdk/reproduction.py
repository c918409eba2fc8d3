"""The spec that repeats a run, and the inputs that nothing pins. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gangline_schemas.api.jobs import Job
from gangline_schemas.base import FieldError
from gangline_schemas.job import JobSpec


@dataclass(frozen=True)
class Reproduction:
    """`loose`: the inputs that may differ from the run's, each with the reason."""

    spec: JobSpec
    loose: tuple[FieldError, ...]


def reproduction_of(job: Job, spec: JobSpec) -> Reproduction:
    """The same job from its first step, with as many GPUs as its gang had."""
    if job.image is not None:
        spec = spec.model_copy(update={"image": job.image})
    gpus = job.gpus_allocated or job.gpus
    resources = spec.resources.model_copy(
        update={"gpus": gpus, "min_gpus": None, "gpu_counts": None} if len(spec.sizes) > 1 else {}
    )
    again = spec.model_copy(update={"resources": resources, "notify": (), "trial": None})
    loose = (FieldError(field=field, message=why) for field, why in _loose(job, spec))
    return Reproduction(again, tuple(loose))


def _loose(job: Job, spec: JobSpec) -> Iterator[tuple[str, str]]:
    if spec.image is None:
        yield "image", "the run used the software of its nodes, which may have changed"
    elif "@sha256:" not in spec.image:
        yield "image", f"{spec.image} is a tag, not a digest; it may name another image now"
    if spec.code_bundle is None:
        yield "workdir", "no workdir was packed; programs are those of the node or the image"
    if spec.seed is None and "seed" not in spec.hyperparameters:
        yield "seed", "the run had none; random numbers differ unless the script sets one"
    if spec.data_snapshot is None:
        yield "data_snapshot", "the run named none; data that its script reads may have changed"
    yield from _loose_gang(job, spec)
    if spec.resume_from is not None:
        yield "resume_from", f"needs the checkpoint of {spec.resume_from} to be there still"
    if spec.secrets:
        yield "secrets", f"their values may have changed: {', '.join(spec.secrets)}"


def _loose_gang(job: Job, spec: JobSpec) -> Iterator[tuple[str, str]]:
    if not spec.resources.gpu_type:
        yield "resources.gpu_type", "any type was accepted; another type rounds otherwise"
    if len(spec.sizes) > 1:
        yield "resources.gpus", "the run was elastic; its gang may have had several sizes"
    if job.restarts:
        yield "restarts", f"the run restarted {job.restarts} times; its steps may have run twice"
