"""A gang of 100 nodes x 8 GPUs is owed its GPUs: reclaimed from 1,000 nodes of one-GPU jobs.

One team borrowed the whole cluster with 8,000 preemptible one-GPU jobs, each an hour old. A team
with a guarantee of 800 submits one gang of 800. Measured: the submission and the tick after it,
until `gpus.reserved` and 800 `gang.stopping` are decided; folding them and checking the invariants
is in it. Then the victims' ranks exit, and the gang must start on what was reserved for it.
"""

from __future__ import annotations

from datetime import timedelta

from harness import Context, Result
from scheduler_harness import START, BusyCluster, settle, spec

from gangline_scheduler.core.evolve import fold
from gangline_schemas.events.scheduling import (
    GangMemberChanged,
    JobStateChanged,
)
from gangline_schemas.events.workers import ExitReason
from gangline_schemas.job import JobSpec, JobState
from gangline_schemas.team_limits import TeamConfig
from gangline_simulator.cluster import one_pool
from support.builders.gangs import assigned, gang_allocated

NODES, GPUS_PER_NODE = 1000, 8
GANG = 100 * GPUS_PER_NODE
BORROWER, OWED = "team-00", "team-01"


def full_of_small_jobs() -> BusyCluster:
    """Every GPU held by a job of its own, of a team that has borrowed all but its limit of 1."""
    total = NODES * GPUS_PER_NODE
    teams = (
        TeamConfig(team=BORROWER, gpu_limit=1, borrow_limit=total),
        TeamConfig(team=OWED, gpu_limit=GANG, gpu_guarantee=GANG),
    )
    nodes = one_pool(NODES, GPUS_PER_NODE).pools[0].nodes
    nodes = tuple(
        node.model_copy(update={"rack": f"r{number // 32}", "block": f"b{number // 512}"})
        for number, node in enumerate(nodes)
    )
    cluster = BusyCluster(nodes, teams)
    small = spec(BORROWER, 50, 1, (), 24.0)
    for node in nodes:
        for gpu in range(GPUS_PER_NODE):
            run_on(cluster, small, node.node_id, gpu)
    cluster.now = START + timedelta(hours=1)
    return cluster


def run_on(cluster: BusyCluster, small: JobSpec, node_id: str, gpu: int) -> None:
    """Fold a one-GPU job that runs there."""
    job_id = cluster.fold_waiting(small, since=START)
    part = assigned(node_id, (gpu,), incarnation="1", address=node_id)
    allocated = gang_allocated(job_id, small, part)
    fold(cluster.state, allocated, START)
    started = GangMemberChanged(job_id=job_id, attempt=1, rank=0, status="started")
    for before, after in (
        (JobState.PENDING, JobState.SCHEDULED),
        (JobState.SCHEDULED, JobState.RUNNING),
    ):
        changed = JobStateChanged(job_id=job_id, attempt=1, previous=before, state=after)
        fold(cluster.state, changed, START)
    fold(cluster.state, started, START)


def reclaim(cluster: BusyCluster) -> tuple[float, int]:
    """Submit the gang and tick; (seconds until its GPUs are held, victims)."""
    gang = cluster.submit(spec(OWED, 50, GANG, (), 24.0))
    if gang not in cluster.state.reserved:
        cluster.wait(1)
        cluster.tick()
    assert gang in cluster.state.reserved, "nothing is being freed for the gang"
    took_s = sum(cycle.ms for cycle in cluster.cycles) / 1e3
    victims = list(cluster.state.reserved[gang].victims)
    for victim in victims:
        cluster.finish(victim, ExitReason.STOPPED)
    if not cluster.allocated:
        cluster.tick()
    assert [event.job_id for event in cluster.allocated] == [gang], (
        "others took what was reserved for it"
    )
    return took_s, len(victims)


def run(context: Context) -> list[Result]:
    """Seconds for one reclaim, and for the passes while its victims leave."""
    took, leave_ms = [], []
    victims = 0
    for _ in range(context.repeats(3)):
        cluster = settle(full_of_small_jobs)
        took_s, victims = reclaim(cluster)
        took.append(took_s)
        leave_ms += [cycle.decide_ms for cycle in cluster.cycles if cycle.kind == "release"]
    note = f"{victims} gangs are stopped for a gang of {GANG} GPUs on {NODES} nodes"
    return [
        context.median("reclaim_s", took, "s", note=note),
        context.median("reclaim_victim_leaves_ms", leave_ms, "ms", note="a release and its pass"),
    ]
