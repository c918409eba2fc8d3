"""A job that computes nothing: it reports a loss a step, so that its steps can be counted."""

from __future__ import annotations

import time

from gangline_worker import hyperparameters, report

STEP_S = 0.02

if __name__ == "__main__":
    for step in range(1, int(str(hyperparameters()["steps"])) + 1):
        time.sleep(STEP_S)
        report({"loss": 1 / step}, step)
