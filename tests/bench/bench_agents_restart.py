"""What it costs that the agents of all nodes restart at once, as after an upgrade of them.

- `agents_restart_faults_cpu_s`: the fault manager, 10,000 nodes of 8 GPUs with gangs of 64, 4 and
  1 nodes: each node joins with a new incarnation, and its gangs fail.
- `agents_restart_scheduler_cpu_s`: the scheduler, 1,070 nodes of a real inventory. Each node fails
  and joins, its gangs fail and are placed again, and 250 jobs wait. Inputs come in batches of 500,
  as the service reads them.

CPU time of the thread.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator

from bench_heartbeats import NODES, Cluster
from harness import Context, Result
from scheduler_harness import BusyCluster, busy_cluster, settle

from gangline_schemas.base import Event
from gangline_schemas.events.faults import FailureCause, FailureClass, GangFailed, NodeFailed
from gangline_schemas.events.workers import NodeJoined
from support.builders.gangs import node_info

SHARE, GANGS, WAITING = 0.25, 125, 250
BATCH = 500
AGAIN = "again"
"""The incarnation after the restart."""


def of_faults(nodes: int) -> float:
    """CPU seconds of the fault manager."""
    cluster = Cluster(nodes)
    joins = [
        NodeJoined(node=node_info(f"n{number}", 0, incarnation=AGAIN)) for number in range(nodes)
    ]
    began_s = time.thread_time()
    for event in joins:
        cluster.give(event)
    return time.thread_time() - began_s


def _inputs(cluster: BusyCluster) -> Iterator[tuple[str, Event]]:
    """Of the scheduler: each node fails, then its gangs, then it joins."""
    state = cluster.state
    gangs = defaultdict(list)
    for job_id in state.live:
        gang = state.jobs[job_id].gang
        assert gang is not None
        gangs[gang.nodes[0].node_id].append((job_id, gang.attempt, gang.world_size))
    for node in [each.info for each in state.nodes.values()]:
        failed = NodeFailed(node_id=node.node_id, incarnation=node.incarnation, reason="restarted")
        yield "node failed", failed
        for job_id, attempt, size in gangs[node.node_id]:
            yield (
                "gang failed",
                GangFailed(
                    job_id=job_id, attempt=attempt, cause=FailureCause.NODE, action="restart",
                    message="the agent restarted", node_id=node.node_id, avoid_nodes=(),
                    restarts_used=1, restarts_max=3, failed_at=cluster.now,
                    failure_class=FailureClass.NODE, team="nlp", world_size=size,
                ),
            )  # fmt: skip
        yield "node joined", NodeJoined(node=node.model_copy(update={"incarnation": AGAIN}))


def of_scheduler() -> float:
    """CPU seconds of the scheduler; its gangs run again afterwards."""
    cluster = settle(lambda: busy_cluster(SHARE, running=GANGS, pending=WAITING))
    cluster.checks = False
    inputs, before = [*_inputs(cluster)], len(cluster.state.live)
    cluster.cycles.clear()
    for first in range(0, len(inputs), BATCH):
        for kind, event in inputs[first : first + BATCH]:
            cluster.give(kind, event, together=True)
        cluster.end_batch()
    cluster.wait(1)
    cluster.tick()
    assert len(cluster.state.live) >= before * 0.9, f"{len(cluster.state.live)} of {before} run"
    assert not cluster.scheduler.check(cluster.state)
    return sum(cycle.decide_ms for cycle in cluster.cycles) / 1e3


def run(context: Context) -> list[Result]:
    """Each service."""
    nodes = NODES // 10 if context.quick else NODES
    return [
        context.result("agents_restart_faults_cpu_s", of_faults(nodes), "s", note=f"{nodes} nodes"),
        context.result("agents_restart_scheduler_cpu_s", of_scheduler(), "s"),
    ]
