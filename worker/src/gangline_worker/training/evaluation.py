"""The loss by which a checkpoint is known again, and whether one may be promoted.

With each save the loss over one fixed batch is recorded; fresh processes that loaded the save must
come to the same. The batch is not held out: it tells whether the model is the same, not how good.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping

import torch
from torch import Tensor

from gangline_worker.data.samples import Batch
from gangline_worker.training.agreement import StepNews, all_agree, exchange
from gangline_worker.training.parallel import ParallelModel
from gangline_worker.training.saving import all_finite, local_weights
from gangline_worker.training.state import Evaluation
from gangline_worker.training.world import World

PROMOTE_ENV, VALIDATE_ENV = "GANGLINE_PROMOTE", "GANGLINE_VALIDATE"
EVALUATION_POSITION = 1 << 40
"""In the endless order of samples: behind what any run reaches."""
TOLERANCE = 1e-3
"""Of the recorded loss: other world sizes and bfloat16 add up in another order."""


class RefusedError(ValueError):
    """A checkpoint that may not be promoted; the message says why."""


def records_losses() -> bool:
    """Whether the job wants checkpoints promoted, so that saves need a loss."""
    return bool(os.environ.get(PROMOTE_ENV))


def validates() -> bool:
    """Whether all that this run does is to validate the checkpoint that it starts from."""
    return bool(os.environ.get(VALIDATE_ENV))


class Evaluator:
    """Measures the model as it is now over one batch. All ranks must measure together."""

    def __init__(self, model: ParallelModel, world: World, batch: Batch, samples: int) -> None:
        """`batch` is this rank's part of the `samples` at EVALUATION_POSITION."""
        self._model, self._world, self._samples = model, world, samples
        self._inputs = torch.from_numpy(batch.inputs).to(world.device)
        self._targets = torch.from_numpy(batch.targets).to(world.device)

    def measure(self) -> Evaluation | None:
        """The loss as it is recorded with a save; None: it is not finite."""
        found = self.loss()
        if not math.isfinite(found):
            return None
        return Evaluation(position=EVALUATION_POSITION, samples=self._samples, loss=found)

    def loss(self) -> float:
        """One forward pass; the mean over all ranks, the same on each. In nats a byte."""
        loss = self._model.loss(self._inputs, self._targets)
        mine = 0.0 if loss is None else loss.item()
        news = StepNews(loss=mine, data_wait_s=0.0, has_loss=loss is not None)
        return exchange(news, self._world.control).loss


def validate(
    evaluator: Evaluator,
    recorded: Evaluation | None,
    tensors: Mapping[str, Tensor],
    world: World,
) -> float:
    """See that weights and outputs are finite and the loss is the recorded one, and give it.

    Raises:
        RefusedError: on all ranks, when it is not so.
    """
    if recorded is None:
        raise RefusedError("no loss was recorded with it: the job's checkpoint.promote was off")
    if not all_agree(world.control, ok=all_finite(local_weights(tensors))):
        raise RefusedError("its weights are not finite")
    found = evaluator.measure()
    if found is None:
        raise RefusedError("its outputs are not finite")
    if (found.position, found.samples) != (recorded.position, recorded.samples):
        raise RefusedError("its loss was recorded over other samples")
    if abs(found.loss - recorded.loss) > TOLERANCE * max(1.0, abs(recorded.loss)):
        raise RefusedError(
            f"its evaluation loss is {found.loss:.6f}, and {recorded.loss:.6f} was recorded"
        )
    return found.loss
