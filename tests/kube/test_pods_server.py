"""Pods of gangs with a real API server and kube-scheduler; `Kubelet` says that bound pods run.

The test stands for the gateway and for the agents: if a gang has no pods after some time, it places
the gang again.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from gangline_kube.core.gang_network import KINDS
from gangline_kube.core.job_pod import JOB
from gangline_kube.core.resource import PODS, Object
from gangline_kube.service.api import Cluster
from kube.accounts import installed
from kube.kubelet import Kubelet, foreign_pod, gpus_of
from kube.plane import ControlPlane
from support.builders.helm_chart import HELM
from support.clients.kube_objects import create, delete, new_namespace
from support.fakes.job_gateway import JobGateway, fields_of_job
from support.fixtures.kube import needs_kube
from support.harnesses.kube_operator import OperatorProcess

pytestmark = [
    needs_kube,
    pytest.mark.skipif(HELM is None, reason="no helm: `make test-kube` builds it"),
]
SPACE = "gangline-jobs"
AGAIN_S = 10.0
"""After so long an agent without a pod fails the attempt (GANGLINE_POD_BIND_S)."""


@dataclass
class Stand:
    api: Cluster
    gateway: JobGateway
    process: OperatorProcess
    kubelet: Kubelet

    def place(self, job_id: str, attempt: int, nodes: list[str], gpus: int = 8) -> None:
        spec = {"name": "j", "team": "nlp", "run": "true", "resources": {"gpus": gpus * len(nodes)}}
        placed = [
            {"node_id": name, "gpus": list(range(gpus)), "first_rank": gpus * index}
            for index, name in enumerate(nodes)
        ]
        known = {"attempt": attempt, "state": "scheduled", "nodes": placed}
        with self.gateway.lock:
            self.gateway.jobs[job_id] = fields_of_job(job_id, spec) | known

    def end(self, job_id: str, state: str = "succeeded") -> None:
        with self.gateway.lock:
            self.gateway.jobs[job_id] |= {"state": state, "nodes": []}

    def pods(self, job_id: str) -> list[Object]:
        """The pods of a job that are not just ending."""
        return [
            pod
            for pod in self.api.list(PODS, SPACE).items
            if pod["metadata"]["labels"][JOB] == job_id
            and "deletionTimestamp" not in pod["metadata"]
        ]

    def running(self, job_id: str) -> dict[str, str]:
        """The uid of each running pod of a job, by its node."""
        return {
            pod["spec"]["nodeName"]: pod["metadata"]["uid"]
            for pod in self.pods(job_id)
            if pod["status"].get("phase") == "Running"
        }


@pytest.fixture
def names() -> list[str]:
    return [f"pods-{index}" for index in range(129)]


@pytest.fixture
def stand(control_plane: ControlPlane, names: list[str], tmp_path: Path) -> Iterator[Stand]:
    api = control_plane.cluster()
    account = installed(control_plane, "pods")["gangline-kube-pods"]
    config = account.kubeconfig(tmp_path)
    settings = {
        "GANGLINE_KUBE_PODS_AGENT_IMAGE": "agents:1",
        "GANGLINE_KUBE_PODS_NETWORK": "pod",  # as the example has it
    }
    with (
        Kubelet(api, dict.fromkeys(names, 8), tmp_path) as kubelet,
        JobGateway() as gateway,
        OperatorProcess(config, gateway.url, tmp_path, "gangline_kube.pods", **settings) as process,
    ):
        yield Stand(api, gateway, process, kubelet)
        assert account.denied() == []
        assert account.used() == account.rights


def test_a_gang_of_128_pods_and_its_second_attempt(stand: Stand, names: list[str]) -> None:
    began = time.monotonic()
    stand.place("large-1", 1, names[:128])
    stand.process.wait("128 pods run", lambda: len(stand.running("large-1")) == 128)
    first_s, before = time.monotonic() - began, stand.running("large-1")
    assert set(before) == set(names[:128]), "a pod is not where the gang was placed"

    stand.end("large-1", "pending")
    time.sleep(2)  # some rounds in which the job has no GPUs
    assert stand.running("large-1") == before
    began = time.monotonic()
    stand.place("large-1", 2, names[1:129])
    stand.process.wait("moved", lambda: set(stand.running("large-1")) == set(names[1:129]))
    second_s, after = time.monotonic() - began, stand.running("large-1")
    assert all(after[name] == before[name] for name in names[1:128])

    for of in KINDS:
        assert len(stand.api.list(of, SPACE).items) == 1
    began = time.monotonic()
    stand.end("large-1")
    stand.process.wait("no pods", lambda: not stand.pods("large-1"))
    for of in KINDS:
        stand.process.wait(of.plural, lambda of=of: not stand.api.list(of, SPACE).items)
    print(
        f"128 pods run after {first_s:.1f} s; the second attempt keeps 127, and one pod in another "
        f"place runs after {second_s:.1f} s; all are deleted after {time.monotonic() - began:.1f} s"
    )


@pytest.mark.parametrize("names", [[f"mixed-{index}" for index in range(25)]], ids=["25 nodes"])
def test_gangs_among_pods_of_others_run_whole_or_not_at_all(stand: Stand, names: list[str]) -> None:
    """50 gangs of 1 to 4 nodes, placed without a look at 200 foreign pods that come and go."""
    seed, api = random.Random(28), stand.api
    space, left = new_namespace(api), list[str]()
    waiting = {f"gang-{index}": 0 for index in range(50)}
    placed: dict[str, tuple[float, list[str]]] = {}
    attempts, lost, ran = dict.fromkeys(waiting, 0), 0, 0
    for tick in range(2000):
        if tick < 200:
            create(api, PODS, foreign_pod(f"pod-{tick}", seed.choice([1, 1, 2, 4, 8])), space)
            left.append(f"pod-{tick}")
        if left and (len(left) > 20 or tick >= 200):
            delete(api, PODS, left.pop(seed.randrange(len(left))), space)
        free = [name for name in names if all(name not in on for _, on in placed.values())]
        for job_id in list(waiting):
            count = 1 + int(job_id.rpartition("-")[2]) % 4
            if len(free) >= count:
                on = [free.pop(seed.randrange(len(free))) for _ in range(count)]
                del waiting[job_id]
                attempts[job_id] += 1
                stand.place(job_id, attempts[job_id], on)
                placed[job_id] = time.monotonic(), on
        for job_id, (at_s, on) in list(placed.items()):
            if set(stand.running(job_id)) == set(on):
                stand.end(job_id)
                ran += 1
                del placed[job_id]
            elif time.monotonic() - at_s > AGAIN_S:
                assert stand.running(job_id) == {}, "a gang that lost its race kept pods"
                stand.end(job_id, "pending")
                waiting[job_id] = 0
                lost += 1
                del placed[job_id]
        for node, taken in _bound(api).items():
            assert taken <= 8, f"{node} has {taken} GPUs bound"
        if not waiting and not placed:
            break
    assert ran == 50
    print(f"50 gangs among 200 pods of others: {lost} lost races, all placed again and run")


def _bound(api: Cluster) -> dict[str, int]:
    """GPUs by node that pods are bound for."""
    found: dict[str, int] = {}
    for pod in api.list(PODS).items:
        node = pod["spec"].get("nodeName")
        if node and pod["status"].get("phase") not in {"Succeeded", "Failed"}:
            found[node] = found.get(node, 0) + gpus_of(pod)
    return found
