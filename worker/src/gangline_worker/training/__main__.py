"""`python -m gangline_worker.training [--config FILE] [--set name=value ...]`.

Exit codes:
- 0: trained to the end, saved and stopped as asked, or validated a checkpoint;
- 1: an error in the program, or a checkpoint that may not be promoted;
- 2: wrong settings or data;
- 65: a corrupt or foreign checkpoint;
- 66: data that differs from its manifest;
- 74: the last checkpoint could not be written;
- 75: the agent, or the store that has the data, is gone.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

import torch.distributed as dist

from gangline_storage import StoreError
from gangline_worker.checkpoint.files import CorruptCheckpoint
from gangline_worker.checkpoint.public import RESUME_ENV
from gangline_worker.data.errors import EXIT_DATA_SHARD, DataShardError
from gangline_worker.reporting import doing, flush, hyperparameters
from gangline_worker.training.config import read_settings
from gangline_worker.training.console import complain, say
from gangline_worker.training.evaluation import RefusedError, validates
from gangline_worker.training.layout import gang_sizes, lay_out
from gangline_worker.training.trainer import AgentLostError, SaveFailedError, Trainer
from gangline_worker.training.world import join_world

EXIT_ERROR, EXIT_SETTINGS, EXIT_CHECKPOINT, EXIT_SAVE, EXIT_AWAY = 1, 2, 65, 74, 75
_CODES: dict[type[Exception], int] = {
    RefusedError: EXIT_ERROR,
    CorruptCheckpoint: EXIT_CHECKPOINT,
    DataShardError: EXIT_DATA_SHARD,
    SaveFailedError: EXIT_SAVE,
    AgentLostError: EXIT_AWAY,
    StoreError: EXIT_AWAY,
}


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m gangline_worker.training",
        description="Train a byte-level transformer on text.",
    )
    parser.add_argument("--config", type=Path, help="YAML file of settings")
    parser.add_argument(
        "--set", nargs="+", action="extend", default=[], metavar="NAME=VALUE", dest="overrides"
    )
    parser.add_argument("--resume-from", type=Path, help="folder of a committed checkpoint")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one rank; gives the exit code."""
    options = parse(arguments)
    started = time.perf_counter()
    try:
        doing("starting")
    except OSError as error:
        complain(f"error: the agent's socket cannot be reached: {error}")
        return EXIT_AWAY
    named = os.environ.get(RESUME_ENV)
    resume_from = options.resume_from or (Path(named) if named else None)
    try:
        config = read_settings(options.config, submitted(), options.overrides)
        # Before the ranks meet: else one that is refused first leaves the others a broken socket.
        # At the first start: else an elastic job would fail when it gets another size, hours later.
        rank, world_size = os.environ.get("RANK", "0"), os.environ.get("WORLD_SIZE", "1")
        lay_out(config, int(rank), int(world_size), gang_sizes())
        world = join_world(config.collective_timeout_s)
        trainer = Trainer(config, world, resume_from)
        if world.rank == 0:
            say(f"ready after {time.perf_counter() - started:.2f} s")
        reason = None
        if validates():
            _validate(trainer)
        else:
            reason = trainer.run()
    except tuple(_CODES) as error:
        return _fail(error, next(code for kind, code in _CODES.items() if isinstance(error, kind)))
    except ValueError as error:  # what the user gave; torch's own come with a traceback
        if type(error).__module__.startswith("gangline_worker"):
            return _fail(error, EXIT_SETTINGS)
        raise
    if reason is not None:
        say(f"stopped after step {trainer.step}: {reason}")
    flush()
    dist.destroy_process_group()
    return 0


def _validate(trainer: Trainer) -> None:
    loss = trainer.validate()
    if trainer.world.rank == 0:
        say(f"step {trainer.step} is sound: its evaluation loss is {loss:.6f}, as was recorded")


def submitted() -> dict[str, object]:
    """The job's hyperparameters, and its seed, `parallel` or strategy when they name none."""
    found: dict[str, object] = {}
    named = hyperparameters()
    if seed := os.environ.get("GANGLINE_SEED"):
        found["seed"] = seed
    if parallel := os.environ.get("GANGLINE_PARALLEL"):
        found["parallel"] = json.loads(parallel)
    elif (strategy := os.environ.get("GANGLINE_STRATEGY")) and "parallel" not in named:
        found["strategy"] = strategy
    return found | named


def _fail(error: Exception, code: int) -> int:
    complain(f"error: {error}")
    flush()
    return code


def leave(code: int) -> None:
    """End at once: other ranks may be dead, and tearing groups down would wait for them."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    try:
        leave(main())
    except SystemExit as usage:
        leave(usage.code if isinstance(usage.code, int) else EXIT_ERROR)
    except BaseException:  # noqa: BLE001 -- printed, and shown by the exit code
        traceback.print_exc()
        with contextlib.suppress(OSError):
            flush()
        leave(EXIT_ERROR)
