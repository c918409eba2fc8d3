"""A job in a container image is placed where agents run images, and else its reason says so."""

from __future__ import annotations

from gangline_scheduler.core.policy.config import Policy
from gangline_schemas.events.scheduling import GangAllocated, JobWaiting
from gangline_schemas.events.workers import NodeInfo, NodeJoined
from support.builders.cpu_jobs import cpu_node, cpu_spec, submit
from support.builders.deciding import every, only
from support.builders.scheduler import Cluster, node

IMAGE = "pytorch/pytorch:2.8.0"


def running(plain: NodeInfo) -> NodeInfo:
    """The same with an agent that runs images."""
    return plain.model_copy(update={"runs_images": True})


def test_a_gang_goes_where_images_run() -> None:
    cluster = Cluster(node("n1", 4), node("n2", 4), running(node("n3", 2)))
    inside = only(cluster.submit("inside", 2, image=IMAGE), GangAllocated)
    assert {part.node_id for part in inside.nodes} == {"n3"}
    assert only(cluster.submit("outside", 4), GangAllocated)


def test_it_waits_for_such_a_node_with_that_reason() -> None:
    cluster = Cluster(node("n1", 4), running(node("n2", 2)))
    waiting = only(cluster.submit("big", 4, image=IMAGE), JobWaiting)
    assert waiting.code == "shape"
    assert waiting.message.startswith("needs 4 GPUs on nodes that run images; 1 of 2 nodes do so")
    joined = cluster.give(NodeJoined(node=running(node("n3", 4))))
    assert only(joined, GangAllocated).job_id == "big"


def test_what_no_node_holds_is_not_the_image() -> None:
    cluster = Cluster(node("n1", 4))
    waiting = only(cluster.submit("huge", 16, image=IMAGE), JobWaiting)
    assert "image" not in waiting.message


def test_jobs_without_gpus_too() -> None:
    cluster = Cluster(cpu_node("n1"))
    waiting = only(submit(cluster, "a", cpu_spec(image=IMAGE)), JobWaiting)
    assert "on a node that runs images; 0 of 1 nodes do so" in waiting.message
    joined = cluster.give(NodeJoined(node=running(cpu_node("n2"))))
    (part,) = only(joined, GangAllocated).nodes
    assert part.node_id == "n2"


def test_with_its_first_estimate_a_job_says_where_it_would_start() -> None:
    cluster = Cluster(running(node("n1", 2)), policy=Policy(estimate_starts=True))
    cluster.run("runs", 2, expected_runtime_hours=1)
    for job_id, fields in {"inside": {"image": IMAGE}, "outside": {}}.items():
        cluster.submit(job_id, 2, expected_runtime_hours=1, **fields)
    estimated = {
        event.job_id: event.likely_nodes
        for seconds in range(1, 4)
        for event in every(cluster.tick(seconds), JobWaiting)
        if event.eta is not None
    }
    assert estimated == {"inside": ("n1",), "outside": None}, "only images are fetched early"
