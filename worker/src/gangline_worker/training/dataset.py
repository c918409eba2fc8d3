"""The data that a run reads, the same on all its ranks."""

from __future__ import annotations

from pathlib import Path

from gangline_worker.data.errors import DataError
from gangline_worker.data.flag import flag
from gangline_worker.data.opening import ReadSettings, open_samples
from gangline_worker.data.samples import Samples
from gangline_worker.training.agreement import all_same
from gangline_worker.training.config import TrainConfig
from gangline_worker.training.layout import Layout
from gangline_worker.training.shapes import VOCABULARY
from gangline_worker.training.world import World


def open_dataset(config: TrainConfig, layout: Layout, world: World) -> tuple[Samples, str]:
    """The samples and their digest.

    Raises:
        DataError: there is none for this model, or (on all ranks) ranks read different bytes: then
            samples would be used twice and missed.
        StoreError: the store that has the data does not answer.
    """
    # Ranks that read the same samples must read the same bytes, so none leaves out a block.
    alone = layout.shape.data_ranks == world.size
    samples = open_samples(
        config.data,
        seq_len=config.seq_len,
        seed=config.seed,
        complain=flag,
        tokens=ReadSettings(
            cache=Path(config.data_cache) if config.data_cache else None,
            cache_gb=config.data_cache_gb,
            shuffle_gb=config.data_shuffle_gb,
            max_damaged_blocks=config.data_max_damaged_blocks if alone else 0,
        ),
        suffix=config.data_suffix,
        max_bytes=config.data_max_bytes,
    )
    if samples.vocab_size > VOCABULARY:
        raise DataError(
            f"data: {config.data!r} has {samples.vocab_size:,} tokens, and this model reads "
            "bytes; prepare it with --tokenizer bytes, or train by a program of your own"
        )
    digest = samples.digest()
    number = int(digest[:13], 16)  # 52 bits: float64 holds them all
    if not all_same(world.control, number):
        raise DataError(
            f"data: ranks read different bytes from {config.data!r} (another Python, "
            "another copy?); name a folder that is the same on every node"
        )
    return samples, digest
