"""Gangs in pods, end to end: an agent, the process that makes pods, and an API server in memory.

The test stands for the scheduler and the gateway; kubelet really starts what the pods say.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gangline_schemas.events.scheduling import GangAllocated, ReleaseReason
from gangline_schemas.events.workers import ExitReason, NodeInfo
from support.fakes.job_gateway import JobGateway, fields_of_job
from support.fakes.kube_api import KubeServer
from support.fakes.kube_cluster import GPU, KubeNodes
from support.harnesses.kube_operator import OperatorProcess
from support.harnesses.node import NodeHarness


@pytest.fixture
def data() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="gl-", ignore_cleanup_errors=True) as name:
        yield Path(name) / "n"


@dataclass
class Stand:
    """An agent and its node, the API server with a kubelet, and the process that makes pods."""

    harness: NodeHarness
    node: NodeInfo
    server: KubeServer
    gateway: JobGateway
    nodes: KubeNodes
    process: OperatorProcess
    data: Path

    def pods(self) -> list[dict[str, Any]]:
        """The pods of jobs that are not just ending."""
        found = [pod for pod in self.server.objects("pods") if pod["metadata"].get("labels")]
        return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]

    def uids(self) -> list[str]:
        return [pod["metadata"]["uid"] for pod in self.pods()]

    def allocate(self, run: str, **more: Any) -> GangAllocated:
        """Give a gang its GPUs, as the agent and the gateway see it."""
        gang = self.harness.allocate(self.node, image="train:1", run=run, **more)
        self.show(gang)
        return gang

    def show(self, gang: GangAllocated, state: str = "scheduled") -> None:
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
        with self.gateway.lock:
            self.gateway.jobs[gang.job_id] = known


@pytest.fixture
def network() -> str:
    """Whose network pods have."""
    return "node"


@pytest.fixture
def stand(tmp_path: Path, kafka_bootstrap: str, data: Path, network: str) -> Iterator[Stand]:
    of_pods = {
        "GANGLINE_KUBE_PODS_AGENT_IMAGE": "agents:1",
        "GANGLINE_KUBE_PODS_DATA": str(data),
        "GANGLINE_KUBE_PODS_NETWORK": network,
    }
    settings = {
        "GANGLINE_DATA_DIR": str(data),
        "GANGLINE_RANKS_IN_PODS": "true",
        "GANGLINE_POD_NETWORK": network,
        "GANGLINE_POD_BIND_S": "60",
    }
    with (
        NodeHarness(tmp_path, kafka_bootstrap, **settings) as harness,
        KubeServer() as server,
        JobGateway() as gateway,
    ):
        node = harness.start_agent()
        server.do(lambda: server.add("namespaces", {"metadata": {"name": "gangline-jobs"}}))
        config = server.kubeconfig(tmp_path)
        with (
            KubeNodes(server, {node.node_id: 2}) as nodes,
            OperatorProcess(
                config, gateway.url, tmp_path, "gangline_kube.pods", **of_pods
            ) as process,
        ):
            yield Stand(harness, node, server, gateway, nodes, process, data)


def test_a_gang_runs_in_pods_again_in_the_same_ones_and_loses_a_race(stand: Stand) -> None:
    harness, server, process, name = stand.harness, stand.server, stand.process, stand.node.node_id
    first = stand.allocate("echo rank $RANK; exit 9")
    assert {item.exit_code for item in harness.exits(2).values()} == {9}
    harness.wait(lambda: harness.lines(1) == ["rank 1"])
    pods = stand.uids()
    assert len(pods) == 1
    harness.release(first, ReleaseReason.RESTARTING)
    stand.show(first, "pending")

    again = stand.allocate("exit 0", attempt=2)
    assert harness.exits(4)[2, 0].reason is ExitReason.FINISHED
    assert stand.uids() == pods
    harness.release(again, ReleaseReason.SUCCEEDED)
    stand.show(again, "succeeded")
    process.wait("no pods", lambda: server.objects("pods") == [])

    asked = {"resources": {"limits": {GPU: "1"}}}
    foreign = {"metadata": {"name": "foreign"}, "spec": {"containers": [asked]}}
    server.do(lambda: server.add("pods", foreign, "default"))
    process.wait("foreign", lambda: stand.nodes.most[name] > 0)
    stand.allocate("true", job_id="job-2")
    process.wait("a pod", lambda: bool(stand.pods()))
    process.wait("given up", lambda: stand.pods() == [])
    assert stand.nodes.most[name] == 2


def test_a_gang_in_pods_trains_and_starts_again_while_the_api_server_is_away(
    stand: Stand,
) -> None:
    harness, server, process = stand.harness, stand.server, stand.process
    steps = "while [ ! -e $GANGLINE_CHECKPOINT_DIR/go ]; do echo step; sleep 0.1; done; exit 9"
    first = stand.allocate(steps)
    harness.wait(lambda: bool(harness.lines(0) and harness.lines(1)))
    pods = stand.uids()
    server.go_away()
    asked = len(server.requests)
    before = [len(harness.lines(rank)) for rank in (0, 1)]
    process.wait("it is missed", lambda: "kube.follow_failed" in process.words())
    harness.wait(lambda: all(len(harness.lines(rank)) > before[rank] + 20 for rank in (0, 1)))

    (stand.data / "checkpoints" / first.job_id / "go").touch()
    assert {item.exit_code for item in harness.exits(2).values()} == {9}
    harness.release(first, ReleaseReason.RESTARTING)
    stand.show(first, "pending")
    again = stand.allocate("echo again; exit 0", attempt=2)
    assert harness.exits(4)[2, 1].reason is ExitReason.FINISHED
    assert (stand.uids(), len(server.requests)) == (pods, asked)

    server.come_back()
    harness.release(again, ReleaseReason.SUCCEEDED)
    stand.show(again, "succeeded")
    process.wait("no pods", lambda: server.objects("pods") == [])


MEETS = """
import torch.distributed as dist
dist.init_process_group("gloo")
print("met", dist.get_world_size(), flush=True)
"""


@pytest.mark.parametrize("network", ["pod"])
def test_a_gang_with_a_network_of_its_own_has_a_policy_and_meets_without_the_agent(
    stand: Stand, tmp_path: Path
) -> None:
    harness, server, process = stand.harness, stand.server, stand.process
    program = tmp_path / "meets.py"
    program.write_text(MEETS, encoding="utf-8")
    run = f"echo $MASTER_ADDR $TORCHELASTIC_USE_AGENT_STORE; {sys.executable} {program}"
    gang = stand.allocate(run)
    assert {item.reason for item in harness.exits(2).values()} == {ExitReason.FINISHED}
    harness.wait(lambda: all(len(harness.lines(rank)) == 2 for rank in (0, 1)))
    assert harness.lines(1) == ["127.0.0.1 False", "met 2"]

    (pod,) = stand.pods()
    (policy,) = server.objects("networkpolicies", "networking.k8s.io")
    (service,) = server.objects("services")
    own = policy["spec"]["podSelector"]
    assert own["matchLabels"].items() <= pod["metadata"]["labels"].items()
    assert policy["spec"]["ingress"] == [{"from": [{"podSelector": own}]}]
    assert pod["spec"]["subdomain"] == service["metadata"]["name"]
    lifted = server.requests.index(f"PATCH /api/v1/namespaces/gangline-jobs/pods/{_name(pod)}")
    for path in ("/api/v1/namespaces/gangline-jobs/services", _POLICIES):
        assert server.requests.index(f"POST {path}") < lifted

    harness.release(gang, ReleaseReason.SUCCEEDED)
    stand.show(gang, "succeeded")
    process.wait(
        "nothing is left",
        lambda: (
            not (
                server.objects("pods")
                or server.objects("services")
                or server.objects("networkpolicies", "networking.k8s.io")
            )
        ),
    )


_POLICIES = "/apis/networking.k8s.io/v1/namespaces/gangline-jobs/networkpolicies"


def _name(pod: dict[str, Any]) -> str:
    return str(pod["metadata"]["name"])
