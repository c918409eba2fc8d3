"""Where each rank stands, and what must hold before ranks meet: pure arithmetic over settings."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from gangline_schemas.parallel import Parallel, Shape
from gangline_schemas.resources import Resources, named, only_these
from gangline_worker.training.config import ConfigError, TrainConfig
from gangline_worker.training.shapes import VOCABULARY, hidden_width


@dataclass(frozen=True)
class Layout:
    """One rank's place: ranks stand at [pipeline][replicas][shard][tensor], tensor fastest."""

    shape: Shape
    rank: int
    whole_copies: bool  # DDP: each rank holds all weights, as plain tensors

    @property
    def data_rank(self) -> int:
        """Which part of each batch this rank computes; ranks of one model share it."""
        return self.rank // self.shape.tensor % self.shape.data_ranks

    @property
    def stage(self) -> int:
        """Which part of the layers this rank has."""
        return self.rank // (self.shape.data_ranks * self.shape.tensor)

    @property
    def first_stage(self) -> bool:
        """Whether bytes come in here."""
        return self.stage == 0

    @property
    def last_stage(self) -> bool:
        """Whether logits, and so the loss, come out here."""
        return self.stage == self.shape.pipeline - 1

    def layers(self, layers: int) -> range:
        """Which of all layers this rank's stage has."""
        each = layers // self.shape.pipeline
        return range(self.stage * each, (self.stage + 1) * each)


def gang_sizes() -> Sequence[int]:
    """The numbers of GPUs that the gang may have, rising; none: the job is not elastic."""
    text = os.environ.get("GANGLINE_RESOURCES")
    if text is None:
        return ()
    resources = Resources.decode(text)
    return resources.sizes(resources.gpus_per_worker or 1)


def lay_out(config: TrainConfig, rank: int, world_size: int, sizes: Sequence[int] = ()) -> Layout:
    """Place one rank. Every rank refuses the same settings, so none waits for it.

    `sizes`: those that an elastic gang may have, rising; none: `world_size` alone.

    Raises:
        ConfigError: the settings do not fit together, or do not fit the gang at one of its sizes;
            the message names the setting and the way out.
    """
    sizes = sizes or (world_size,)
    asked = config.parallel
    if asked is None:
        asked = Parallel() if config.strategy == "ddp" else Parallel(shard="auto")
    shape = asked.shape(world_size)
    misfit = asked.misfit(sizes)
    if shape is None or misfit is not None:
        raise ConfigError(f"parallel: {misfit or asked.misfit([world_size])}")
    replicated = shape.shard == shape.tensor == shape.pipeline == shape.expert == 1
    if config.strategy == "ddp" and not replicated:
        raise ConfigError(
            f"strategy: ddp keeps all weights on every rank, which parallel ({asked}) does not; "
            "drop strategy, parallel decides alone"
        )
    _check_model(config, shape)
    _check_batch(config, shape, sizes)
    whole_copies = replicated and (config.strategy == "ddp" or shape.replicas > 1)
    return Layout(shape, rank, whole_copies)


def _check_model(config: TrainConfig, shape: Shape) -> None:
    if config.layers % shape.pipeline:
        raise ConfigError(
            f"parallel.pipeline ({shape.pipeline}) must divide layers ({config.layers}): "
            "each stage has as many"
        )
    if shape.tensor > 1:
        for name, size in (
            ("heads", config.heads),
            ("seq_len", config.seq_len),
            (f"the hidden width of dim {config.dim}", hidden_width(config.dim)),
            ("the vocabulary", VOCABULARY),
        ):
            if size % shape.tensor:
                raise ConfigError(
                    f"parallel.tensor ({shape.tensor}) must divide {name} ({size}); "
                    f"choose another of the two"
                )
    if shape.tensor > 1 and config.experts:
        raise ConfigError(
            f"parallel.tensor ({shape.tensor}) does not go with experts ({config.experts}); "
            "share them out with parallel.expert"
        )
    if shape.expert > 1 and (not config.experts or config.experts % shape.expert):
        raise ConfigError(
            f"parallel.expert ({shape.expert}) must divide experts ({config.experts}); "
            f"give experts a multiple of {shape.expert}, or drop parallel.expert"
        )


def _check_batch(config: TrainConfig, shape: Shape, sizes: Sequence[int]) -> None:
    """At every size, each data rank gets the same part of the batch, in whole passes."""
    batch, passes, together = config.batch_size, config.accumulation, shape.tensor * shape.pipeline
    parts = {gpus: gpus // together * passes for gpus in sizes}
    bad = [gpus for gpus, part in parts.items() if batch % part]
    if bad:
        unit = f" / {together} (tensor x pipeline)" if together > 1 else ""
        times = f" x accumulation ({passes})" if passes > 1 else ""
        elastic = ", which the gang may have" if len(sizes) > 1 else ""
        good = [gpus for gpus, part in parts.items() if not batch % part]
        raise ConfigError(
            f"batch_size ({batch}) does not divide by {named(bad)} GPUs{unit}{times}{elastic}; "
            f"{_way_out(good, parts[sizes[0]])}"
        )
    if passes < shape.pipeline:
        raise ConfigError(
            f"accumulation ({passes}) is below parallel.pipeline ({shape.pipeline}): "
            f"a pipeline is filled with so many micro-batches; give {shape.pipeline} or more, "
            "better 4 times as many"
        )


def _way_out(good: Sequence[int], part: int) -> str:
    """`good`: sizes by which the batch divides; `part`: how many parts the smallest size needs."""
    if good:
        return f"{only_these(good, 'numbers by which it divides')}, or another batch_size"
    return f"give a batch_size that is a multiple of {part}, or another number of GPUs"
