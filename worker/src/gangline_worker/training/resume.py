"""Continues a run from a committed checkpoint: all ranks load it, or none does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError
from torch import Tensor

from gangline_worker.checkpoint.files import CorruptCheckpoint
from gangline_worker.checkpoint.loader import Checkpoint, WrongCheckpoint
from gangline_worker.checkpoint.local import holdings
from gangline_worker.checkpoint.public import another_copy
from gangline_worker.data.errors import DataError
from gangline_worker.data.left_out import LeftOut
from gangline_worker.training.agreement import all_agree
from gangline_worker.training.config import TrainConfig
from gangline_worker.training.console import say
from gangline_worker.training.state import (
    Evaluation,
    TrainState,
    code_ref,
    restore_rng,
    seed_everything,
)
from gangline_worker.training.world import World


@dataclass(frozen=True)
class Resumed:
    """Where a run continues. `evaluation` is what was recorded with the checkpoint."""

    step: int
    position: int
    left_out: LeftOut
    evaluation: Evaluation | None


def resume(
    folder: Path,
    config: TrainConfig,
    world: World,
    tensors: Mapping[str, Tensor],
    data_digest: str,
    left_out: LeftOut,
) -> Resumed:
    """Fill the tensors and the random generators from the checkpoint in `folder`.

    `left_out` are the samples that this run goes without, beside those of the checkpoint.

    Raises:
        CorruptCheckpoint, WrongCheckpoint, DataError: on all ranks, when one cannot load.
    """
    error: Exception | None = None
    try:
        checkpoint = Checkpoint(folder, another_copy, rank=world.rank, world_size=world.size)
        checkpoint.fill(holdings(tensors, world.rank, world.size))
        state = _state_of(checkpoint)
        if state.step > config.steps:
            raise WrongCheckpoint(
                f"steps ({config.steps}) is below the step of the checkpoint ({state.step}): it "
                "counts the steps of earlier runs too; give more, or start from an earlier one"
            )
        if state.data_digest != data_digest:
            raise DataError(
                f"data: {config.data!r} has changed since step {state.step}; give back what "
                "the run began with, or start a new run"
            )
    except (CorruptCheckpoint, WrongCheckpoint, DataError) as raised:
        error = raised
    # Damage is tried elsewhere, and a start that does not fit is not: all ranks end alike.
    misfit = error if isinstance(error, (WrongCheckpoint, DataError)) else None
    if not all_agree(world.control, ok=misfit is None):
        raise misfit or WrongCheckpoint(f"{folder} does not fit another rank's model or data")
    if not all_agree(world.control, ok=error is None):
        raise error or CorruptCheckpoint(folder, "another rank could not load its part")
    if checkpoint.record.world_size == world.size:
        restore_rng(state.rng, world.device)
    else:  # not every new rank has a state: draw other numbers than before
        seed_everything(config.seed + state.step, world.rank)
    if world.rank == 0:
        same = {
            "settings": state.config_digest == config.digest(),
            "code": state.code_ref == code_ref(),
        }
        others = [name for name, is_same in same.items() if not is_same]
        saved = f", saved with other {' and other '.join(others)}" if others else ""
        say(f"resumed from {folder.parent.name}/{folder.name}{saved}")
        if changes := _changes(state.data_order or {}, config.data_order()):
            say(
                f"data: samples come in another order than before ({changes}): in this epoch some "
                "come twice, and others not at all"
            )
    known = LeftOut().join(state.left_out)
    joined = known.join(left_out.ranges)
    place = joined.position(known.place(state.position))
    return Resumed(state.step, place, joined, state.evaluation)


def _changes(before: Mapping[str, float], now: Mapping[str, float]) -> str:
    """The values that differ, of those that are known from before."""
    names = [name for name in now if name in before and before[name] != now[name]]
    return ", ".join(f"{name} was {before[name]}, is {now[name]}" for name in names)


def _state_of(checkpoint: Checkpoint) -> TrainState:
    try:
        return TrainState.model_validate(checkpoint.own_manifest.state, extra="ignore")
    except ValidationError as error:
        raise WrongCheckpoint(f"{checkpoint.folder} is not of this trainer") from error
