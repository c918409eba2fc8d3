"""A trial that trains nothing: its scores depend on its parameter and the step alone."""

from __future__ import annotations

import time

from gangline_worker import hyperparameters, report

STEPS = 9
STEP_S = 0.05


def score(x: float, step: int) -> float:
    """The trial's score after a step; lower is better."""
    return (x - 0.3) ** 2 + 1 / step


if __name__ == "__main__":
    given = float(str(hyperparameters()["x"]))
    for at in range(1, STEPS + 1):
        time.sleep(STEP_S)
        report({"score": score(given, at)}, at)
