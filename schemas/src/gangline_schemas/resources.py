"""The request of a gang: the job's `resources` field, and the sizes that a gang may have.

A job without GPUs (`gpus: 0`) has one rank on each of `nodes` nodes, with `cpus` and `memory_gb`
for each.

A worker is `gpus_per_worker` GPUs of one node, and a gang is whole workers at each of its sizes.
One rank runs on each GPU, and the ranks of a worker are consecutive: rank r belongs to worker `r //
gpus_per_worker`. `parallel.tensor` implies the worker of a job that names none
(`JobSpec.gpus_per_worker`), so that a tensor-parallel group never crosses a node.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator, model_validator

from gangline_schemas.base import Model
from gangline_schemas.limits import MAX_GANG_GPUS, MAX_NODES, ShortText

MAX_COUNTS = 256
SHOWN = 4
"""So many sizes that do not fit are named."""
MOST_COUNTS = 32
"""So many sizes that fit are listed."""
LEAST_SHARE = 0.001
"""CPUs and GB of a rank are counted in thousandths."""


def named(sizes: Sequence[int]) -> str:
    """Sizes of a gang, for a message: the first few."""
    return ", ".join(str(gpus) for gpus in sizes[:SHOWN]) + (", ..." if len(sizes) > SHOWN else "")


def only_these(good: Sequence[int], which: str) -> str:
    """The way out of a message: the gang is to have these sizes alone. `which`: what they are."""
    if len(good) == 1:
        return f"give resources.gpus: {good[0]} without min_gpus"
    if len(good) > MOST_COUNTS:
        return f"list {which} alone as resources.gpu_counts"
    return f"give gpus: {good[-1]}, min_gpus: {good[0]} and gpu_counts: {[*good]} under resources"


_OF_GPU_JOBS = (
    "workers", "gpus_per_worker", "min_gpus", "gpu_counts", "gpu_type", "cpus_per_gpu",
    "memory_per_gpu_gb",
)  # fmt: skip


def _as_tuple(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


def _of_workers(data: dict[str, Any]) -> int | None:
    """The gang's GPUs where only its workers are given; None: they do not say."""
    workers, each = data.get("workers"), data.get("gpus_per_worker")
    return None if workers is None or each is None else workers * each


class Resources(Model):
    """The request of one gang: `gpus`, or `workers` of `gpus_per_worker` GPUs. One rank per GPU.

    An elastic gang has any number of whole workers from `min_gpus` to `gpus` GPUs, or one of
    `gpu_counts`. A gang without GPUs has `cpus` and `memory_gb` for each of its `nodes` ranks.
    """

    workers: int | None = Field(
        default=None, ge=1, le=MAX_GANG_GPUS, description="In place of gpus: workers of the gang."
    )
    gpus_per_worker: int | None = Field(
        default=None,
        ge=1,
        le=MAX_GANG_GPUS,
        description="GPUs of a worker, which lie together on one node.",
    )
    gpus: int = Field(
        default_factory=_of_workers,  # None is refused below
        validate_default=True,
        ge=0,
        le=MAX_GANG_GPUS,
        description="GPUs of the whole gang; 0: a job on CPUs alone.",
    )
    min_gpus: int | None = Field(
        default=None, ge=1, le=MAX_GANG_GPUS, description="Elastic down to this, if given."
    )
    gpu_counts: tuple[Annotated[int, Field(ge=1, le=MAX_GANG_GPUS)], ...] | None = Field(
        default=None,
        min_length=1,
        max_length=MAX_COUNTS,
        description="The only numbers of GPUs of an elastic gang, from min_gpus to gpus.",
    )
    gpu_type: Annotated[tuple[ShortText, ...], BeforeValidator(_as_tuple)] = Field(
        default=(), max_length=16, description="Accepted GPU models, best first; empty: any."
    )
    cpus_per_gpu: float = Field(default=1.0, ge=LEAST_SHARE, le=256)
    memory_per_gpu_gb: float = Field(default=1.0, ge=LEAST_SHARE, le=4096)
    cpus: float | None = Field(
        default=None,
        validate_default=True,
        ge=LEAST_SHARE,
        le=4096,
        description="Of a job without GPUs: CPUs of a node.",
    )
    memory_gb: float | None = Field(
        default=None,
        validate_default=True,
        ge=LEAST_SHARE,
        le=65_536,
        description="Of a job without GPUs: GB of a node.",
    )
    nodes: int | None = Field(
        default=None,
        ge=1,
        le=MAX_NODES,
        description="Of a job without GPUs: nodes, with one rank on each; default 1.",
    )

    @field_validator("gpus", mode="before")
    @classmethod
    def _gpus_are_given(cls, gpus: Any) -> Any:
        if gpus is None:
            raise ValueError(
                "is missing: give it, or both workers and gpus_per_worker; for a job without GPUs "
                "give gpus: 0, cpus and memory_gb"
            )
        return gpus

    @field_validator("cpus", "memory_gb", "nodes")
    @classmethod
    def _is_of_a_job_without_gpus(cls, value: float | None, info: ValidationInfo) -> float | None:
        gpus = info.data.get("gpus")
        if gpus and value is not None:
            raise ValueError(
                "is for jobs without GPUs (gpus: 0); with GPUs give cpus_per_gpu and "
                "memory_per_gpu_gb"
            )
        if gpus == 0 and value is None and info.field_name != "nodes":
            raise ValueError("is missing: a job without GPUs (gpus: 0) needs cpus and memory_gb")
        return value

    @model_validator(mode="after")
    def _has_gpus_if_it_speaks_of_them(self) -> Self:
        fields = type(self).model_fields
        wrong = [name for name in _OF_GPU_JOBS if getattr(self, name) != fields[name].default]
        if self.gpus == 0 and wrong:
            raise ValueError(f"{wrong[0]} is for jobs with GPUs, and gpus is 0; leave it out")
        return self

    @field_validator("gpu_counts")
    @classmethod
    def _counts_are_of_an_elastic_gang(
        cls, counts: tuple[int, ...] | None, info: ValidationInfo
    ) -> tuple[int, ...] | None:
        if counts is None or not {"gpus", "min_gpus"} <= info.data.keys():
            return counts
        rising, least, most = sorted({*counts}), info.data["min_gpus"], info.data["gpus"]
        if list(counts) != rising:
            raise ValueError(f"must rise and name each count once: {rising}")
        if least is None:
            raise ValueError("is for elastic jobs: give min_gpus too, which is the first of them")
        if (counts[0], counts[-1]) != (least, most):
            raise ValueError(
                f"goes from {counts[0]} to {counts[-1]}; it must begin with min_gpus ({least}) "
                f"and end with gpus ({most})"
            )
        return counts

    @model_validator(mode="after")
    def _min_is_not_above(self) -> Self:
        if self.min_gpus is not None and self.min_gpus > self.gpus:
            raise ValueError(f"min_gpus ({self.min_gpus}) is above gpus ({self.gpus})")
        return self

    @model_validator(mode="after")
    def _workers_are_whole(self) -> Self:
        each = self.gpus_per_worker
        if self.workers is not None and each is None:
            raise ValueError(
                f"workers ({self.workers}) needs gpus_per_worker; for workers of one GPU give "
                f"gpus: {self.workers} alone"
            )
        if self.workers is not None and each is not None and self.workers * each != self.gpus:
            raise ValueError(
                f"gpus ({self.gpus}) is not workers ({self.workers}) x gpus_per_worker ({each}), "
                f"which is {self.workers * each}; leave out gpus or workers"
            )
        broken = self.broken_worker(each, f"gpus_per_worker ({each})") if each is not None else None
        if broken is not None:
            raise ValueError(broken)
        return self

    @property
    def ranks(self) -> int:
        """Ranks of the whole gang: one for each GPU; without GPUs one for each node."""
        return self.gpus or self.nodes or 1

    def cpu_thousandths(self, ranks: int) -> int:
        """Thousandths of a CPU of so many ranks without GPUs; 0 of a gang with GPUs."""
        return ranks * round((self.cpus or 0.0) * 1000)

    def broken_worker(self, each: int, name: str) -> str | None:
        """Which of the gang's sizes is not whole workers of so many GPUs, and the way out.

        `name`: how the message calls their size.
        """
        given = [("gpus", self.gpus), ("min_gpus", self.min_gpus or each)]
        given += [("gpu_counts", count) for count in self.gpu_counts or ()]
        for field, gpus in given:
            if gpus % each:
                below, above = gpus // each * each, -(-gpus // each) * each
                near = f"{below} or {above}" if below else f"{above}"
                return (
                    f"{field} ({gpus}) must be a multiple of {name}, as the GPUs of a worker "
                    f"lie on one node; give {near}"
                )
        return None

    def sizes(self, each: int) -> Sequence[int]:
        """The numbers of ranks that a gang of workers of so many GPUs may have, rising.

        One, unless it is elastic. A rank has one GPU; without GPUs it has a node.
        """
        if self.min_gpus is None:
            return (self.ranks,)
        return self.gpu_counts or range(self.min_gpus, self.gpus + 1, each)
