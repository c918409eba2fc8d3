"""How each figure of tracking grows with ten times as many runs and points.

Our server alone, twice over fresh data: with 10,000 runs and a metric of 100,000 points, then with
ten times both. And curves of 50 runs in a store of 50 and of 500 million points. A growth of 10 is
in proportion; those of `log_metric` and of memory should stay near 1.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable

from bench_mlflow import RUNS
from harness import Context, Result, in_own_process, scratch
from tracking_runs import add_runs
from tracking_servers import OURS, Side, servers
from tracking_work import POINTS, chart, clients, fill, history, log_metric, search

from support.harnesses.genuine_mlflow import OFF

FACTOR = 10
STEPS = 1_000_000
COMPARE_TIMEOUT_S = 3600.0


def run(context: Context) -> list[Result]:
    """Figures at ten times the size, and what they are over those at the usual size."""
    os.environ.update(OFF)
    small, large = (_figures(context, scale) for scale in (1, FACTOR))
    results = []
    for name, (value, unit) in large.items():
        results.append(context.result(f"x{FACTOR}_{name}", value, unit))
        results.append(context.result(f"x{FACTOR}_{name}_growth", value / small[name][0], "x"))
    return results


def _figures(context: Context, scale: int) -> dict[str, tuple[float, str]]:
    rounds, share = context.repeats(5, 1), 10 if context.quick else 1
    with scratch() as folder, servers(folder, alone=True) as sides:
        side = sides[OURS]
        add_runs(side, RUNS * scale // share)
        count = POINTS * scale // share
        fill(side, count)

        def median(measure: Callable[[Side], float]) -> float:
            return statistics.median(measure(side) for _ in range(rounds))

        found = {
            "history_s": (median(lambda one: history(one, count)), "s"),
            "chart_ms": (median(chart), "ms"),
            "search_ms": (median(search), "ms"),
            "log_metric_p50_ms": (median(log_metric), "ms"),
        }
        with clients() as eight:
            found["log_batch_8_clients"] = (median(eight.log_batch), "points/s")
        found["memory_mb"] = (side.memory_mb(), "MB (PSS)")
    steps = STEPS * scale // share
    curves = in_own_process(
        "bench_compare", "--steps", str(steps), "--repeats", "5", timeout_s=COMPARE_TIMEOUT_S
    )
    found |= {f"{name}_ms": (of["wall_ms"], "ms") for name, of in curves.items()}
    context.say(f"{scale} x: {found} (load average {os.getloadavg()[0]:.1f})")
    return found
