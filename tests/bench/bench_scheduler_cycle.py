"""One scheduling cycle on a real inventory: 10,412 GPUs, 500 gangs run, 10,000 jobs wait.

A cycle is one input through `decide`, `evolve` and the invariants, as in the service. One round:
a gang's ranks exit, the last exit releases its GPUs and a full pass follows; the ranks of a gang
that started report; as many jobs are submitted as started; a tick. The headline counts the
cycles that concern the queue (releases with their pass, submissions, ticks). Worker reports, 9 of
10 inputs and the cheapest, are counted apart: they would only flatter it.

Times are CPU time of the thread: other work on the machine does not count, its cache misses do.
"""

from __future__ import annotations

import random

from harness import Context, Result
from scheduler_harness import (
    BusyCluster,
    Cycle,
    Jobs,
    busy_cluster,
    calibration_ms,
    quantile,
    settle,
)

QUEUE = frozenset({"release", "submission", "tick"})
LARGEST_TO_END = 64
"""Gangs above it run on: the ranks of one of 1,024 would be most of the benchmark."""

MOST_SUBMITTED = 8
"""Jobs a round: of a cluster that has not settled hundreds start at once."""


def rounds(cluster: BusyCluster, count: int, *, seed: int = 2) -> list[Cycle]:
    """So many rounds; their cycles."""
    jobs, chance = Jobs(seed), random.Random(seed)
    cluster.cycles.clear()
    for _ in range(count):
        cluster.wait(5)
        live = [cluster.state.jobs[job_id] for job_id in cluster.state.live]
        cluster.finish(chance.choice([job.job_id for job in live if job.gpus <= LARGEST_TO_END]))
        started, cluster.allocated = cluster.allocated, []
        for gang in [gang for gang in started if gang.world_size <= LARGEST_TO_END][:1]:
            cluster.start_ranks(gang)
        for _ in started[:MOST_SUBMITTED] or (None,):
            cluster.submit(jobs.draw())
        cluster.wait(1)
        cluster.tick()
    return cluster.cycles


def run(context: Context) -> list[Result]:
    """P50 and P99 of the cycles about the queue, and of each kind of input."""
    cluster = settle(lambda: busy_cluster(1, running=500, pending=10_000))
    state = cluster.state
    held = sum(state.jobs[job_id].allocated_gpus for job_id in state.live)
    context.say(f"{len(state.live)} gangs on {held} GPUs, {len(state.pending)} jobs wait")
    note = f"{len(state.live)} gangs on {held} GPUs, {len(state.pending)} jobs wait"
    cycles = rounds(cluster, context.repeats(100, 25))
    calibration = calibration_ms()
    total = [cycle.ms for cycle in cycles if cycle.kind in QUEUE]
    results = [
        context.result("cycle_p50_ms", quantile(total, 0.5), "ms", note=note),
        context.result("cycle_p99_ms", quantile(total, 0.99), "ms", note=f"{len(total)} cycles"),
        context.result("cycle_p50_ratio", quantile(total, 0.5) / calibration, "x"),
        context.result("cycle_p99_ratio", quantile(total, 0.99) / calibration, "x"),
        context.result("calibration_ms", calibration, "ms", note="a loop of plain Python"),
    ]
    for kind in ("release", "submission", "tick", "report"):
        of_kind = [cycle for cycle in cycles if cycle.kind == kind]
        decided = [cycle.decide_ms for cycle in of_kind]
        note = f"{len(of_kind)} inputs, P99 {quantile(decided, 0.99):.1f} ms; without the check"
        results.append(context.median(f"cycle_{kind}_ms", decided, "ms", note=note))
    checks = [cycle.check_ms for cycle in cycles if cycle.kind in QUEUE]
    results.append(context.median("cycle_check_ms", checks, "ms", note="the invariants"))
    return results
