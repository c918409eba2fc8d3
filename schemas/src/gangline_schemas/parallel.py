"""How a model is spread over the ranks of a gang: the job's `parallel` field, and its arithmetic.

Rank r stands at [pipeline][replicas][shard][tensor], tensor fastest, so that the ranks that talk
most are neighbours. Expert parallelism needs no ranks of its own: experts are dealt out among the
replicas x shard ranks of one stage.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from gangline_schemas.base import Model
from gangline_schemas.resources import named, only_these

Ways = Annotated[int, Field(ge=1, le=16_384)]


@dataclass(frozen=True)
class Shape:
    """How many ranks each kind of parallelism has at one size of the gang."""

    replicas: int = 1
    shard: int = 1
    tensor: int = 1
    pipeline: int = 1
    expert: int = 1

    @property
    def data_ranks(self) -> int:
        """Ranks that read different samples."""
        return self.replicas * self.shard

    @property
    def ranks(self) -> int:
        """The size of the gang."""
        return self.data_ranks * self.tensor * self.pipeline


class Parallel(Model):
    """Ranks of each kind of parallelism. Their product, without `expert`, is the gang's size.

    `auto` is the rest that the others leave; of two, `shard` takes it.
    """

    replicas: Ways | Literal["auto"] = Field(
        default="auto", description="Copies of the model, each on samples of its own."
    )
    shard: Ways | Literal["auto"] = Field(
        default=1, description="Ranks that share out a copy's weights and optimizer (FSDP)."
    )
    tensor: Ways = Field(default=1, description="Ranks that share out each layer's matrices.")
    pipeline: Ways = Field(default=1, description="Stages that the layers are shared out to.")
    expert: Ways = Field(
        default=1, description="Of the replicas x shard ranks, those that share out the experts."
    )

    @model_validator(mode="after")
    def _experts_are_dealt_out(self) -> Self:
        fixed = "auto" not in {self.replicas, self.shard}
        if fixed and self.unit // (self.tensor * self.pipeline) % self.expert:
            raise ValueError(
                f"replicas ({self.replicas}) x shard ({self.shard}) must divide by expert "
                f"({self.expert}): experts are shared out among these ranks"
            )
        return self

    def shape(self, gpus: int) -> Shape | None:
        """Ranks of each kind in a gang of `gpus` ranks; None when that size does not fit."""
        unit = self.unit
        if gpus % unit:
            return None
        rest = gpus // unit
        replicas = 1 if self.shard == "auto" else rest
        if self.replicas != "auto":
            replicas = self.replicas
        shard = self.shard if self.shard != "auto" else rest
        found = Shape(replicas, shard, self.tensor, self.pipeline, self.expert)
        return None if found.ranks != gpus or found.data_ranks % self.expert else found

    @property
    def unit(self) -> int:
        """The product of all that is given as a number: the gang's size is a multiple of it."""
        replicas = 1 if self.replicas == "auto" else self.replicas
        shard = 1 if self.shard == "auto" else self.shard
        return replicas * shard * self.tensor * self.pipeline

    def misfit(self, sizes: Sequence[int]) -> str | None:
        """Why a gang that may have any of `sizes` cannot be laid out so, and the way out."""
        bad = [gpus for gpus in sizes if self.shape(gpus) is None]
        if not bad:
            return None
        good = [gpus for gpus in sizes if self.shape(gpus) is not None]
        return f"{self} does not fit {named(bad)} GPUs; {self._way_out(bad[-1], good)}"

    def _way_out(self, gpus: int, good: Sequence[int]) -> str:
        if not good:
            return f"give resources.gpus: {self._next(gpus)}, or change one of the numbers"
        return only_these(good, f"multiples of {self.unit}")

    def _next(self, gpus: int) -> int:
        """The least size from `gpus` on that fits; with no `auto` there is but one."""
        if "auto" not in {self.replicas, self.shard}:
            return self.unit
        wanted = -(-gpus // self.unit) * self.unit
        while self.shape(wanted) is None:  # at most `expert` times
            wanted += self.unit
        return wanted

    def __str__(self) -> str:
        """The text for messages."""
        names = ("replicas", "shard", "tensor", "pipeline")
        product = " x ".join(f"{name} {getattr(self, name)}" for name in names)
        return product if self.expert == 1 else f"{product}, with expert {self.expert},"
