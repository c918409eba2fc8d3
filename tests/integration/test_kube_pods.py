"""Gangs in pods, end to end: an agent, the process that makes pods, and an API server in memory.

The test stands for the scheduler and the gateway; kubelet really starts what the pods say.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gangline_schemas.events.scheduling import GangAllocated, ReleaseReason
from gangline_schemas.events.workers import ExitReason
from support.fakes.job_gateway import JobGateway, fields_of_job
from support.fakes.kube_api import KubeServer
from support.fakes.kube_cluster import GPU, KubeNodes
from support.harnesses.kube_operator import OperatorProcess
from support.harnesses.node import NodeHarness


@pytest.fixture
def data() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="gl-", ignore_cleanup_errors=True) as name:
        yield Path(name) / "n"


def show(gateway: JobGateway, gang: GangAllocated, state: str = "scheduled") -> None:
    """Let the gateway know of an attempt; states without GPUs have no nodes."""
    nodes = [
        {"node_id": node.node_id, "gpus": list(node.gpus), "first_rank": node.first_rank}
        for node in gang.nodes
    ]
    known = {
        **fields_of_job(gang.job_id, gang.spec.data()),
        "attempt": gang.attempt,
        "state": state,
        "nodes": nodes if state == "scheduled" else [],
    }
    with gateway.lock:
        gateway.jobs[gang.job_id] = known


def ours(server: KubeServer) -> list[dict[str, Any]]:
    labelled = [pod for pod in server.objects("pods") if pod["metadata"].get("labels")]
    return [pod for pod in labelled if "deletionTimestamp" not in pod["metadata"]]


def test_a_gang_runs_in_pods_again_in_the_same_ones_and_loses_a_race(
    tmp_path: Path, kafka_bootstrap: str, data: Path
) -> None:
    of_pods = {
        "GANGLINE_KUBE_PODS_AGENT_IMAGE": "agents:1",
        "GANGLINE_KUBE_PODS_DATA": str(data),
    }
    settings = {
        "GANGLINE_DATA_DIR": str(data),
        "GANGLINE_RANKS_IN_PODS": "true",
        "GANGLINE_POD_BIND_S": "60",
    }
    with (
        NodeHarness(tmp_path, kafka_bootstrap, **settings) as harness,
        KubeServer() as server,
        JobGateway() as gateway,
    ):
        node = harness.start_agent()
        server.do(lambda: server.add("namespaces", {"metadata": {"name": "gangline-jobs"}}))
        with (
            KubeNodes(server, {node.node_id: 2}) as nodes,
            OperatorProcess(
                server.kubeconfig(tmp_path), gateway.url, tmp_path, "gangline_kube.pods", **of_pods
            ) as process,
        ):
            first = harness.allocate(node, image="train:1", run="echo rank $RANK; exit 9")
            show(gateway, first)
            assert {item.exit_code for item in harness.exits(2).values()} == {9}
            harness.wait(lambda: harness.lines(1) == ["rank 1"])
            (pod,) = ours(server)
            harness.release(first, ReleaseReason.RESTARTING)
            show(gateway, first, "pending")

            again = harness.allocate(node, attempt=2, image="train:1", run="exit 0")
            show(gateway, again)
            assert harness.exits(4)[2, 0].reason is ExitReason.FINISHED
            assert [each["metadata"]["uid"] for each in ours(server)] == [pod["metadata"]["uid"]]
            harness.release(again, ReleaseReason.SUCCEEDED)
            show(gateway, again, "succeeded")
            process.wait("no pods", lambda: server.objects("pods") == [])

            asked = {"resources": {"limits": {GPU: "1"}}}
            foreign = {"metadata": {"name": "foreign"}, "spec": {"containers": [asked]}}
            server.do(lambda: server.add("pods", foreign, "default"))
            process.wait("foreign", lambda: nodes.most[node.node_id] > 0)
            late = harness.allocate(node, job_id="job-2", run="true")
            show(gateway, late)
            process.wait("a pod", lambda: bool(ours(server)))
            process.wait("given up", lambda: ours(server) == [])
            assert nodes.most[node.node_id] == 2
