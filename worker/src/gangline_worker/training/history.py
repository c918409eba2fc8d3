"""The course of a training, as an output of a step: `out: [history]`.

`history.json` has the curves of loss and eval_loss since the last restart, with at most `MOST`
points each, and what the training cost since then. The step `compare` draws them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping

from gangline_worker.steps.folders import declared, write_json

OUTPUT, FILE = "history", "history.json"
NAMES = ("loss", "eval_loss")
MOST = 1000


class History:
    """The curves that rank 0 keeps. Beyond `MOST` points every second one is dropped."""

    def __init__(self, ranks: int) -> None:
        self._ranks, self._began = ranks, time.monotonic()
        self._curves: dict[str, list[tuple[int, float]]] = {name: [] for name in NAMES}
        self._every = 1

    def add(self, step: int, metrics: Mapping[str, float]) -> None:
        """Note a step. Costs about a microsecond."""
        for name, curve in self._curves.items():
            value = metrics.get(name)
            if value is None or not math.isfinite(value):
                continue
            if name != "loss" or step % self._every == 0:
                curve.append((step, value))
            if len(curve) > MOST:
                del curve[1::2]
                self._every *= 2 if name == "loss" else 1

    def leave(self) -> None:
        """Write the output, if the step of this job declares it."""
        folder = declared(OUTPUT)
        if folder is None:
            return
        seconds = time.monotonic() - self._began
        curves = {name: curve for name, curve in self._curves.items() if curve}
        cost = {"ranks": self._ranks, "seconds": seconds}
        cost["rank_hours"] = self._ranks * seconds / 3600
        write_json(folder / FILE, {"curves": curves, "cost": cost})
