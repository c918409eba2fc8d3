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
    scene = busy_cluster(1, running=500, pending=10_000)
    fold(scene.state, TeamNoted(config=TeamConfig(team="extra", gpu_limit=1_000_000)), scene.now)
    for number in range(shapes):
        job = {
            "name": "stuck",
            "team": "extra",
            "priority": 20,
            "command": ["x"],
            "resources": {"gpus": 16 + number, "cpus_per_gpu": 4},
            "topology": {"level": "node", "mode": "required"},
        }
        scene.fold_waiting(JobSpec.model_validate(job), since=scene.now - timedelta(hours=1))
    for _ in range(2):
        scene.wait(1)
        scene.tick()
    scene.cycles.clear()
    return scene


def ends(scene: BusyCluster, count: int) -> list[float]:
    """So many jobs end, one after the other; what each pass cost in ms."""
    small = [
        job_id
        for job_id in scene.state.live
        if scene.state.jobs[job_id].allocated_gpus <= LARGEST_TO_END
    ]
    for job_id in small[:count]:
        scene.finish(job_id)
    return [cycle.decide_ms for cycle in scene.cycles if cycle.kind == "release"]


def run(context: Context) -> list[Result]:
    """Medians of an ended job and of a tick, and by how much more many shapes cost."""
    count = context.repeats(100, 30)
    medians: dict[int, float] = {}
    results: list[Result] = []
    for shapes in (FEW, MANY):
        scene = settle(lambda shapes=shapes: stuck(shapes))
        values = ends(scene, count)
        medians[shapes] = quantile(values, 0.5)
        note = f"{shapes} shapes that no node holds"
        results.append(context.median(f"stuck_{shapes}_release_ms", values, "ms", note=note))
        scene.cycles.clear()
        for _ in range(10):
            scene.wait(1)
            scene.tick()
        ticks = [cycle.decide_ms for cycle in scene.cycles]
        results.append(context.median(f"stuck_{shapes}_tick_ms", ticks, "ms", note=note))
    more = medians[MANY] / medians[FEW]
    results.append(context.result("stuck_shapes_ratio", more, "x"))
    return results
