"""Where each rank stands, and what must hold before ranks meet: pure arithmetic over settings."""

from __future__ import annotations

from dataclasses import dataclass

from gangline_schemas.parallel import Parallel, Shape
from gangline_worker.data.order import rank_share
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


def lay_out(config: TrainConfig, rank: int, world_size: int) -> Layout:
    """Place one rank. Every rank refuses the same settings, so none waits for it.

    Raises:
        ConfigError, BatchError: the settings do not fit together or the gang; the message names
            the setting and the way out.
    """
    asked = config.parallel
    if asked is None:
        asked = Parallel() if config.strategy == "ddp" else Parallel(shard="auto")
    shape = asked.shape(world_size)
    if shape is None:
        raise ConfigError(f"parallel: {asked.misfit([world_size])}")
    replicated = shape.shard == shape.tensor == shape.pipeline == shape.expert == 1
    if config.strategy == "ddp" and not replicated:
        raise ConfigError(
            f"strategy: ddp keeps all weights on every rank, which parallel ({asked}) does not; "
            "drop strategy, parallel decides alone"
        )
    _check_model(config, shape)
    _check_batch(config, shape)
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


def _check_batch(config: TrainConfig, shape: Shape) -> None:
    batch, ranks = config.batch_size, shape.data_ranks
    if shape.tensor * shape.pipeline == 1:
        share = rank_share(batch, ranks)
    elif batch % ranks:
        raise ConfigError(
            f"batch_size ({batch}) does not divide by the {ranks} data ranks "
            f"(replicas {shape.replicas} x shard {shape.shard}); choose a multiple of {ranks}"
        )
    else:
        share = batch // ranks
    if share % config.accumulation:
        raise ConfigError(
            f"batch_size ({batch}) / data ranks ({ranks}) = {share} does not divide by "
            f"accumulation ({config.accumulation})"
        )
    if config.accumulation < shape.pipeline:
        raise ConfigError(
            f"accumulation ({config.accumulation}) is below parallel.pipeline ({shape.pipeline}): "
            f"a pipeline is filled with so many micro-batches; give {shape.pipeline} or more, "
            "better 4 times as many"
        )
