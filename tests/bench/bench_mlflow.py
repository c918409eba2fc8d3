"""MLflow's unmodified client against our server, the genuine one and FastTrackML, in turns.

Run it alone: python tests/bench/run.py --only mlflow. FastTrackML is measured where
`make bench-tracker` has installed it. Only ratios have budgets: the servers run beside each other.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable

from harness import Context, Result, scratch
from tracking_runs import add_runs, differences
from tracking_servers import FASTTRACKML, GENUINE, OURS, Side, servers
from tracking_work import chart, clients, fill, history, log_metric, search

from support.harnesses.genuine_mlflow import OFF

RUNS = 10_000
Measure = Callable[[Side], float]


class Comparison:
    """Medians of all servers over rounds that alternate between them, and our ratios."""

    def __init__(self, context: Context, sides: dict[str, Side], rounds: int) -> None:
        self._context, self._sides, self._rounds = context, sides, rounds
        self.results: list[Result] = []

    def add(self, name: str, measure: Measure, unit: str, *, without: str = "") -> None:
        """Measure; the figures have the server's name, and the ratios "over" the other's."""
        sides = [side for side in self._sides.values() if side.name != without]
        values: dict[str, list[float]] = {side.name: [] for side in sides}
        used = dict.fromkeys(values, 0.0)
        for turn in range(self._rounds):
            for side in sides[turn % len(sides) :] + sides[: turn % len(sides)]:
                before = side.cpu_s()
                values[side.name].append(measure(side))
                used[side.name] += side.cpu_s() - before
        self._context.say(f"{name}: {values} (load average {os.getloadavg()[0]:.1f})")
        medians = {side: statistics.median(found) for side, found in values.items()}
        for side, found in values.items():
            self.results.append(
                self._context.median(f"{name}_{unit_word(unit)}_{side}", found, unit)
            )
        for side in values.keys() - {OURS}:
            ratio = medians[OURS] / medians[side]
            note = f"server CPU {used[OURS]:.2f} s, {used[OURS] / used[side]:.2g} x"
            self.results.append(self._context.result(f"{name}_over_{side}", ratio, "x", note=note))


def unit_word(unit: str) -> str:
    return unit.replace("/", "_per_")


def run(context: Context) -> list[Result]:
    """All figures, of all servers."""
    rounds = context.repeats(7, 2)
    os.environ.update(OFF)
    with scratch() as folder, servers(folder) as sides:
        if FASTTRACKML not in sides:
            context.say("FastTrackML is not measured: `make bench-tracker` installs it")
        found = Comparison(context, sides, rounds)
        found.add("mlflow_log_metric_p50", log_metric, "ms")
        with clients() as eight:
            found.add("mlflow_log_batch_8_clients", eight.log_batch, "points/s")
        for side in sides.values():
            fill(side)
        found.add("mlflow_history_100k", history, "s")
        found.add("mlflow_chart_320", chart, "ms", without=FASTTRACKML)  # it has no such route
        for side in sides.values():
            add_runs(side, RUNS)
        found.add("mlflow_search_200_of_10k", search, "ms")
        differ = differences(sides[OURS], sides[GENUINE])
        return [
            *found.results,
            context.result("mlflow_search_answers_that_differ", differ, "searches"),
            context.result("mlflow_memory_mb", sides[OURS].memory_mb(), "MB (PSS)"),
        ]
