"""Shapes that no node can hold: what a job that ends costs beside 5 and beside 420 of them.

The cluster of bench_scheduler_cycle: 500 gangs run, 10,000 other jobs wait. The shapes are of a
team that may hold them all, stand first in the queue and have waited for an hour.
"""

from __future__ import annotations

from datetime import timedelta

from harness import Context, Result
from scheduler_harness import BusyCluster, busy_cluster, quantile, settle

from gangline_scheduler.core.evolve import fold
from gangline_schemas.events.scheduling import TeamNoted
from gangline_schemas.job import JobSpec
from gangline_schemas.team_limits import TeamConfig

FEW, MANY = 5, 420
LARGEST_TO_END = 8


def stuck(shapes: int) -> BusyCluster:
    """A settled cluster, and a tick that has looked at each shape."""
    cluster = busy_cluster(1, running=500, pending=10_000)
    fold(
        cluster.state, TeamNoted(config=TeamConfig(team="extra", gpu_limit=1_000_000)), cluster.now
    )
    for number in range(shapes):
        job = {
            "name": "stuck",
            "team": "extra",
            "priority": 20,
            "command": ["x"],
            "resources": {"gpus": 16 + number, "cpus_per_gpu": 4},
            "topology": {"level": "node", "mode": "required"},
        }
        cluster.fold_waiting(JobSpec.model_validate(job), since=cluster.now - timedelta(hours=1))
    for _ in range(2):
        cluster.wait(1)
        cluster.tick()
    cluster.cycles.clear()
    return cluster


def ends(cluster: BusyCluster, count: int) -> list[float]:
    """So many jobs end, one after the other; what each pass cost in ms."""
    small = [
        job_id
        for job_id in cluster.state.live
        if cluster.state.jobs[job_id].allocated_gpus <= LARGEST_TO_END
    ]
    for job_id in small[:count]:
        cluster.finish(job_id)
    return [cycle.decide_ms for cycle in cluster.cycles if cycle.kind == "release"]


def run(context: Context) -> list[Result]:
    """Medians of an ended job and of a tick, and by how much more many shapes cost."""
    count = context.repeats(100, 30)
    medians: dict[int, float] = {}
    results: list[Result] = []
    for shapes in (FEW, MANY):
        cluster = settle(lambda shapes=shapes: stuck(shapes))
        values = ends(cluster, count)
        medians[shapes] = quantile(values, 0.5)
        note = f"{shapes} shapes that no node holds"
        results.append(context.median(f"stuck_{shapes}_release_ms", values, "ms", note=note))
        cluster.cycles.clear()
        for _ in range(10):
            cluster.wait(1)
            cluster.tick()
        ticks = [cycle.decide_ms for cycle in cluster.cycles]
        results.append(context.median(f"stuck_{shapes}_tick_ms", ticks, "ms", note=note))
    more = medians[MANY] / medians[FEW]
    results.append(context.result("stuck_shapes_ratio", more, "x"))
    return results
