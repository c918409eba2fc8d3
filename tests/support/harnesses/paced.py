"""The trainer, as a job's own program, of which each step takes a while without computing.

Most tests only need a job that runs while something happens: one that computes all the time
takes the cores from what is tested, and from the tests beside. A step pauses for PAUSE_S.
UNTIL is a path: once a file is there, the next step is the job's last (see held_job.training).
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from gangline_worker.training import __main__ as program
from gangline_worker.training.agreement import all_agree
from gangline_worker.training.trainer import StepResult, Trainer

PAUSE_S = float(os.environ.get("PAUSE_S", "0.15"))
UNTIL = os.environ.get("UNTIL")


class Paced(Trainer):
    """See the module."""

    def train_step(self) -> StepResult:
        if UNTIL is not None and all_agree(self.world.control, ok=Path(UNTIL).exists()):
            self.config = self.config.model_copy(update={"steps": self.step + 1})
        else:
            time.sleep(PAUSE_S)
        return super().train_step()


if __name__ == "__main__":
    program.Trainer = Paced  # type: ignore[misc]
    sys.exit(program.main())
