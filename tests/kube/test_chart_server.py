"""The chart with each file of example values, judged by a real API server.

Each object is created strictly, as a dry run. Each pod is tried in a namespace that enforces the
restricted profile of Pod Security.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from gangline_kube.core.crd import training_job_crd
from gangline_kube.core.resource import NAMESPACES, PODS, Resource
from gangline_kube.service.api import Cluster, Conflict, Denied
from kube.plane import ControlPlane
from support.builders.helm_chart import EXAMPLES, HELM, rendered, templates
from support.clients.kube_objects import (
    PRIORITY_CLASSES,
    create,
    define,
    define_training_jobs,
    delete,
    new_namespace,
    resources,
    try_create,
)
from support.fixtures.kube import needs_kube

RUNTIMES = Resource("node.k8s.io", "v1", "runtimeclasses", "RuntimeClass", namespaced=False)
MONITORS = os.environ.get("GANGLINE_TEST_POD_MONITOR")
"""The definition of PodMonitor, a kind of the Prometheus operator."""
PROFILE = "pod-security.kubernetes.io/enforce"
pytestmark = [
    needs_kube,
    pytest.mark.skipif(HELM is None or not MONITORS, reason="no helm: `make test-kube` builds it"),
    pytest.mark.parametrize("example", EXAMPLES, ids=[path.stem for path in EXAMPLES]),
]


@pytest.fixture(scope="module")
def api(control_plane: ControlPlane) -> Iterator[Cluster]:
    """A client; the server has what the chart expects of a cluster."""
    found = control_plane.cluster()
    define_training_jobs(found)
    assert MONITORS
    define(found, yaml.safe_load(Path(MONITORS).read_text("utf-8")))
    runtime = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "handler": "nvidia"}
    create(found, RUNTIMES, runtime | {"metadata": {"name": "nvidia"}})
    yield found
    delete(found, RUNTIMES, "nvidia")


@pytest.fixture(scope="module")
def known(api: Cluster) -> dict[tuple[str, str], Resource]:
    return resources(api)


@pytest.fixture(scope="module", params=["restricted", "privileged"])
def space(api: Cluster, request: pytest.FixtureRequest) -> Iterator[str]:
    name = new_namespace(api, labels={PROFILE: request.param})
    yield name
    delete(api, NAMESPACES, name)


def test_a_server_takes_each_object(
    api: Cluster, known: dict[tuple[str, str], Resource], example: Path
) -> None:
    space = new_namespace(api)
    for item in rendered(example, space):
        if item["kind"] == "CustomResourceDefinition":
            assert item == training_job_crd()
        else:
            of = known[item["apiVersion"], item["kind"]]
            own = item["metadata"].get("namespace", space) if of.namespaced else ""
            if own not in {"", space}:
                with contextlib.suppress(Conflict):
                    create(api, NAMESPACES, {"metadata": {"name": own}})
            made = try_create(api, of, item, own)
            assert made["metadata"]["uid"]
    delete(api, NAMESPACES, space)


def test_pod_security_takes_all_pods_but_agents(
    api: Cluster, space: str, example: Path, request: pytest.FixtureRequest
) -> None:
    restricted = "restricted" in request.node.name
    for item in rendered(example):
        if item["kind"] == PRIORITY_CLASSES.kind:
            with contextlib.suppress(Conflict):
                create(api, PRIORITY_CLASSES, item)
    for name, template in templates(example):
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "labels": template["metadata"]["labels"]},
            "spec": template["spec"],
        }
        if "-agent-" in name and restricted:
            with pytest.raises(Denied, match="violates PodSecurity"):
                try_create(api, PODS, pod, space)
        else:
            assert try_create(api, PODS, pod, space)["metadata"]["uid"]
