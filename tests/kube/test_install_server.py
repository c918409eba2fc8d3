"""The chart, installed on a real control plane: its pods get nodes and keep them.

kube-controller-manager makes the pods, kube-scheduler binds them, and `Kubelet` says that they run.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gangline_kube.core.resource import NAMESPACES, PODS, Resource
from gangline_kube.service.api import Cluster, NotFound
from kube.kubelet import Kubelet, foreign_pod
from kube.plane import ControlPlane
from support.builders.helm_chart import HELM, example, rendered
from support.clients.kube_objects import (
    PRIORITY_CLASSES,
    create,
    define_training_jobs,
    delete,
    new_namespace,
    resources,
)
from support.fixtures.kube import needs_kube
from support.waiting import wait_until

DEPLOYMENTS = Resource("apps", "v1", "deployments", "Deployment", namespaced=True)
GPU_NODES = ["gpu-1", "gpu-2"]
pytestmark = [
    needs_kube,
    pytest.mark.skipif(HELM is None, reason="no helm: `make test-kube` builds it"),
]


@pytest.fixture
def api(control_plane: ControlPlane, tmp_path: Path) -> Iterator[Cluster]:
    """A client; there are two nodes with GPUs, and one without."""
    found = control_plane.cluster()
    define_training_jobs(found)
    labels = {"nvidia.com/gpu.present": "true"}
    with (
        Kubelet(found, dict.fromkeys(GPU_NODES, 8), tmp_path / "gpu", labels=labels),
        Kubelet(found, {"cpu-1": 0}, tmp_path / "cpu"),
    ):
        yield found


@pytest.fixture
def installed(api: Cluster) -> Iterator[str]:
    """The namespace of a release with the smallest file of values."""
    space, known = new_namespace(api), resources(api)
    made: list[tuple[Resource, str, str]] = []
    for item in rendered(example("minimal"), space):
        if item["kind"] != "CustomResourceDefinition":
            of = known[item["apiVersion"], item["kind"]]
            place = space if of.namespaced else ""
            create(api, of, item, place)
            made.append((of, item["metadata"]["name"], place))
    yield space
    for of, name, place in reversed(made):
        delete(api, of, name, place)
    delete(api, NAMESPACES, space)


def agents(api: Cluster, space: str) -> dict[str, str]:
    """The uids of running agents by their nodes."""
    return {
        each["spec"]["nodeName"]: each["metadata"]["uid"]
        for each in api.list(PODS, space).items
        if each["metadata"]["labels"].get("gangline.dev/part") == "agent"
        and each["status"]["phase"] == "Running"
        and "deletionTimestamp" not in each["metadata"]
    }


def test_the_pods_of_a_release_run_and_agents_keep_their_gpus(api: Cluster, installed: str) -> None:
    wait_until("agents", lambda: agents(api, installed).keys() == set(GPU_NODES))

    def available() -> bool:
        found = api.list(DEPLOYMENTS, installed).items
        return all(
            each["status"].get("availableReplicas") == each["spec"]["replicas"] for each in found
        )

    wait_until("deployments", available)
    before = agents(api, installed)
    important = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "value": 1_000_000}
    create(api, PRIORITY_CLASSES, important | {"metadata": {"name": "important"}})
    others = new_namespace(api)
    try:
        create(api, PODS, foreign_pod("waits", 1, priorityClassName="important"), others)
        wait_until("refused", lambda: "Insufficient nvidia.com/gpu" in _why(api, "waits", others))
        assert agents(api, installed) == before
    finally:
        delete(api, PODS, "waits", others)
        delete(api, PRIORITY_CLASSES, "important")
        delete(api, NAMESPACES, others)


def _why(api: Cluster, name: str, space: str) -> str:
    """Why kube-scheduler does not bind a pod."""
    try:
        conditions = api.get(PODS, name, space)["status"].get("conditions", [])
    except NotFound:
        return ""
    return " ".join(each.get("message", "") for each in conditions)
