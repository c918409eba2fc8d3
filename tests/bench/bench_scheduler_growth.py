"""How the cost of a cycle grows: 1, 4 and 16 times the nodes, the gangs and the jobs that wait.

The inventory of bench_scheduler_cycle (10,412 GPUs, 500 gangs, 10,000 jobs wait), repeated with
racks of its own for each copy. Also the time of the first pass, which fills the empty cluster.
"""

from __future__ import annotations

from functools import partial

from bench_scheduler_cycle import QUEUE, rounds
from harness import Context, Result
from scheduler_harness import BusyCluster, busy_cluster, quantile, settle

TIMES = (1, 4, 16)
ROUNDS = {1: 20, 4: 8, 16: 3}
KINDS = ("release", "submission", "tick", "report", "check")


def busy(times: int) -> BusyCluster:
    """The inventory so many times. The largest is not given the time to settle fully."""
    ticks = 40 if times < 16 else 8
    return busy_cluster(times, running=500 * times, pending=10_000 * times, ticks=ticks)


def run(context: Context) -> list[Result]:
    """Medians of each kind of input at each size, and how much the largest costs more."""
    results: list[Result] = []
    medians: dict[tuple[int, str], float] = {}
    for times in TIMES[:2] if context.quick else TIMES:
        cluster = settle(partial(busy, times))
        note = f"{len(cluster.state.live)} gangs, {len(cluster.state.pending)} jobs wait"
        context.say(f"{times}x: {note}")
        cycles = rounds(cluster, ROUNDS[times])
        for kind in KINDS:
            values = (
                [cycle.check_ms for cycle in cycles if cycle.kind in QUEUE]
                if kind == "check"
                else [cycle.decide_ms for cycle in cycles if cycle.kind == kind]
            )
            medians[times, kind] = quantile(values, 0.5)
            name = f"grow_{times}x_{kind}_ms"
            results.append(context.median(name, values, "ms", note=note if kind == "tick" else ""))
    for kind in KINDS:
        more = medians[4, kind] / medians[1, kind]
        results.append(context.result(f"grow_{kind}_4x_over_1x", more, "x"))
        if (16, kind) in medians:
            more = medians[16, kind] / medians[1, kind]
            results.append(context.result(f"grow_{kind}_16x_over_1x", more, "x"))
    return results
