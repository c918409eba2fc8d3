"""The gateway shows jobs without GPUs: in the queue, on nodes, by rank, and in teams."""

from __future__ import annotations

from datetime import timedelta

from gangline_gateway import gang_heartbeats, present
from gangline_gateway.gpu_map import gpu_map
from gangline_gateway.queue import queue
from gangline_gateway.scheduling import Shard
from gangline_gateway.teams import teams
from gangline_scheduler.core.policy.config import Policy
from gangline_schemas.events.quota import TeamConfigured
from gangline_schemas.events.workers import NodeJoined
from support.builders.cpu_jobs import cpu_node, cpu_spec, gpu_node, submit
from support.builders.deciding import team
from support.builders.read_model import ReadModel
from support.builders.scheduler import Cluster

NEED = cpu_spec(4, 8, nodes=2)


def crowd() -> tuple[Cluster, ReadModel]:
    """A gang with GPUs, one without on two nodes, and one of each that waits."""
    cluster = Cluster(gpu_node("n1", 2, cpus=16))
    cluster.give(TeamConfigured(config=team("nlp")))
    cluster.give(NodeJoined(node=cpu_node("n2", cpus=4)))
    cluster.run("gang", 2)
    submit(cluster, "prepare", NEED)
    cluster.start("prepare")
    submit(cluster, "next", NEED)
    cluster.submit("waits", 2)
    model = ReadModel()
    for decision, at in cluster.log:
        model.apply(decision.event, at)
    return cluster, model


def test_the_queue_has_them_behind_those_that_want_gpus() -> None:
    cluster, _ = crowd()
    shown = queue([Shard(cluster.state, Policy())], cluster.now, None)
    assert [(entry.job_id, entry.gpus, entry.cpus) for entry in shown.queue] == [
        ("waits", 2, None), ("next", 0, 8),
    ]  # fmt: skip
    assert (shown.pending_jobs, shown.pending_gpus) == (2, 2)
    assert shown.queue[1].waiting is not None
    assert queue([Shard(cluster.state, Policy())], cluster.now, frozenset({"cv"})).queue == []


def test_nodes_show_their_cpus_and_the_map_of_gpus_is_as_before() -> None:
    cluster, model = crowd()
    view = model.view()
    nodes = {name: present.node(view, found, None) for name in ("n1", "n2")
             if (found := view.node(name)) is not None}  # fmt: skip
    assert (nodes["n1"].cpus_used, nodes["n1"].jobs, nodes["n1"].gpus_used) == (
        6, ["gang", "prepare"], 2,
    )  # fmt: skip
    assert (nodes["n2"].cpus_used, nodes["n2"].memory_allocated_gb, nodes["n2"].gpus) == (4, 8, [])
    shown = gpu_map(view, [Shard(cluster.state, Policy())], cluster.now, None)
    assert (shown.gpus, shown.gpus_used) == (2, 2)
    assert {at.node_id: [gang.job_id for gang in at.gangs] for at in shown.nodes} == {
        "n1": ["gang"], "n2": [],
    }  # fmt: skip


def test_its_ranks_have_nodes_and_no_gpu_and_its_summary_cpus() -> None:
    cluster, model = crowd()
    view = model.view()
    found = view.details("prepare")
    assert found is not None
    rows = gang_heartbeats.rank_rows(view, found, cluster.now, range(10))
    assert [(row.rank, row.gpu, row.gpu_utilization) for row in rows] == [
        (0, None, None), (1, None, None),
    ]  # fmt: skip
    assert gang_heartbeats.of_gang(view, found, cluster.now).gpu_utilization is None
    job = present.job(found, cluster.now, gang_heartbeats.of_gang(view, found, cluster.now))
    assert (job.cpus, job.gpus, job.gpus_allocated) == (8, 0, 0)
    assert "prepare" in view.running


def test_explain_has_the_cpus_that_it_wants() -> None:
    cluster, model = crowd()
    view = model.view()
    found = view.details("next")
    assert found is not None
    told = present.explain(view, found, team("nlp"), cluster.now + timedelta(seconds=5))
    assert told.evidence["cpus_wanted"] == 8
    assert "gpus_wanted" not in told.evidence


def test_teams_count_their_running_and_waiting_jobs_with_them() -> None:
    cluster, model = crowd()
    model.apply(TeamConfigured(config=team("nlp")), cluster.now)
    (row,) = teams(model.view(), cluster.now, None)
    assert (row.jobs_running, row.jobs_pending, row.gpus_used) == (2, 2, 2)
