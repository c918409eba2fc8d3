"""The process that follows nodes, with a real API server: cordons, taints, conditions, drains.

It runs with the rights of its account. `Kubelet` plays the nodes, and kube-scheduler binds the pods
of others.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gangline_kube.core.nodes import CORDON, DRAIN, foreign_gpus
from gangline_kube.core.resource import NODES, PODS, Object, annotation
from gangline_kube.service.api import Cluster
from kube.accounts import installed
from kube.kubelet import GPU, Kubelet, foreign_pod
from kube.plane import ControlPlane
from support.builders.helm_chart import HELM
from support.clients.kube_objects import create, delete, new_namespace
from support.fakes.job_gateway import JobGateway
from support.fixtures.kube import needs_kube
from support.harnesses.kube_operator import OperatorProcess

pytestmark = [
    needs_kube,
    pytest.mark.skipif(HELM is None, reason="no helm: `make test-kube` builds it"),
]
FOREIGN_PODS = 200
KEY = "example.com/repair"


@dataclass
class Stand:
    api: Cluster
    gateway: JobGateway
    process: OperatorProcess
    kubelet: Kubelet

    def node(self, name: str) -> Object:
        return self.api.get(NODES, name)

    def cordoned(self, name: str) -> bool:
        return bool(self.node(name)["spec"].get("unschedulable"))

    def noted(self, name: str) -> bool:
        """Whether the process remembers a drain or a cordon of it."""
        node = self.node(name)
        return any(annotation(node, note) is not None for note in (DRAIN, CORDON))

    def change(self, name: str, part: str = "", **change: Any) -> None:
        self.api.patch(NODES, name, change, part=part)

    def until(self, status: str, name: str) -> None:
        self.process.wait(f"{name} {status}", lambda: self.gateway.nodes[name] == status)

    def wait(self, what: str, done: Callable[[], bool]) -> None:
        self.process.wait(what, done)


@pytest.fixture
def names() -> list[str]:
    return ["nodes-1", "nodes-2", "nodes-3"]


@pytest.fixture
def stand(control_plane: ControlPlane, names: list[str], tmp_path: Path) -> Iterator[Stand]:
    config = installed(control_plane, "minimal")["gangline-kube"].kubeconfig(tmp_path)
    api = control_plane.cluster()
    with (
        Kubelet(api, dict.fromkeys(names, 8), tmp_path) as kubelet,
        JobGateway() as gateway,
        OperatorProcess(config, gateway.url, tmp_path, "gangline_kube") as process,
    ):
        gateway.nodes = dict.fromkeys(names, "ready")
        yield Stand(api, gateway, process, kubelet)


def condition(status: str) -> dict[str, Any]:
    broken = {"type": "KernelDeadlock", "status": status, "reason": "Hung", "message": "task hung"}
    return {"conditions": [{"type": "Ready", "status": "True"}, broken]}


def test_causes_in_kubernetes_drain_and_end(stand: Stand) -> None:
    stand.change("nodes-1", spec={"unschedulable": True})
    stand.until("draining", "nodes-1")
    stand.change("nodes-1", spec={"unschedulable": None})
    stand.until("ready", "nodes-1")
    taint = {"key": KEY, "value": "disk", "effect": "NoExecute"}
    stand.change("nodes-2", spec={"taints": [taint]})
    stand.until("draining", "nodes-2")
    stand.change("nodes-2", spec={"taints": None})
    stand.until("ready", "nodes-2")
    stand.change("nodes-3", part="status", status=condition("True"))
    stand.until("draining", "nodes-3")
    stand.change("nodes-3", part="status", status=condition("False"))
    stand.until("ready", "nodes-3")
    reasons = [each["reason"] for each in stand.gateway.drains if each["drain"]]
    assert reasons == ["cordoned in Kubernetes", f"taint {KEY}", "KernelDeadlock: task hung"]
    for name in ("nodes-1", "nodes-2", "nodes-3"):
        stand.wait("noted", lambda name=name: not stand.noted(name))
        assert not stand.cordoned(name)


def test_a_drain_cordons_and_people_s_changes_stay(stand: Stand) -> None:
    stand.gateway.nodes |= {"nodes-1": "draining", "nodes-2": "draining"}
    for name in ("nodes-1", "nodes-2"):
        stand.wait("cordoned", lambda name=name: stand.cordoned(name))
    stand.change("nodes-2", spec={"unschedulable": None})  # by a person, during the drain
    stand.gateway.nodes["nodes-1"] = "ready"
    stand.wait("free", lambda: not stand.cordoned("nodes-1"))
    assert not stand.cordoned("nodes-2")
    assert stand.gateway.drains == []


@pytest.mark.parametrize("names", [[f"shared-{index}" for index in range(25)]], ids=["25 nodes"])
def test_nodes_with_gpus_of_others_take_no_new_gangs(stand: Stand, names: list[str]) -> None:
    """200 pods with 0 to 8 GPUs come, and go in another order, over 25 nodes of 8 GPUs."""
    seed, api = random.Random(28), stand.api
    space = new_namespace(api)
    began, left, most = time.monotonic(), list[str](), 0
    for index in range(FOREIGN_PODS):
        name = f"pod-{index}"
        create(api, PODS, _foreign(name, seed), space)
        left.append(name)
        if len(left) > 30:
            delete(api, PODS, left.pop(seed.randrange(len(left))), space)
        if index % 20 == 19:
            _check(stand, names)
            most = max(most, sum(stand.kubelet.taken().values()))
    reasons = {each["reason"] for each in stand.gateway.drains}
    assert all(each["move_jobs"] is False for each in stand.gateway.drains if each["drain"])
    assert "pods of others have 8 GPUs" in reasons
    for name in left:
        delete(api, PODS, name, space)
    for name in names:
        stand.until("ready", name)
    took_s = time.monotonic() - began
    print(f"{FOREIGN_PODS} pods on {len(names)} nodes: {took_s:.1f} s, at most {most} GPUs taken")


def _foreign(name: str, seed: random.Random) -> Object:
    gpus = seed.choice([0, 1, 1, 2, 4, 8])
    return foreign_pod(name, gpus, cpu=str(seed.randint(1, 4)))


def _check(stand: Stand, names: list[str]) -> None:
    """Once it is quiet, just the nodes with GPUs of others are closed; none has too many."""

    def same() -> bool:
        pods = stand.api.list(PODS).items
        taken = foreign_gpus(pods, GPU)
        assert all(gpus <= 8 for gpus in taken.values()), taken
        closed = {name for name in names if stand.gateway.nodes[name] == "cordoned"}
        return closed == set(taken) and not any(map(_unsettled, pods))

    stand.wait("closed", same)


def _unsettled(pod: Object) -> bool:
    """Whether kube-scheduler has not yet looked at it."""
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return not pod["spec"].get("nodeName") and not any(
        each["type"] == "PodScheduled" for each in conditions
    )
