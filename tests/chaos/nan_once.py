"""The trainer, as a job's own program, of which one weight goes bad in its first attempt.

It stands for an error of a device that nothing reports: every rank is well, and what it computes
is not a number any more. The weight is that of a byte that no text has, so the losses do not tell:
the saves do.
"""

from __future__ import annotations

import math
import os
import sys

import torch
from torch.distributed.tensor import DTensor

from gangline_worker.training import __main__ as program
from gangline_worker.training.trainer import StepResult, Trainer

AT_STEP = 65


class Bad(Trainer):
    """After `AT_STEP` steps rank 0 holds a weight that is NaN."""

    def train_step(self) -> StepResult:
        if self.step == AT_STEP and self.world.rank == 0 and os.environ["GANGLINE_ATTEMPT"] == "1":
            weight = next(iter(self.model.plain.parameters()))
            own = weight.to_local() if isinstance(weight, DTensor) else weight
            with torch.no_grad():
                own.view(-1)[0] = math.nan
        return super().train_step()


if __name__ == "__main__":
    program.Trainer = Bad  # type: ignore[misc]
    sys.exit(program.main())
