"""Objects of a Kubernetes API server that tests create and delete."""

from __future__ import annotations

import contextlib
import time
import uuid
from typing import Any

from gangline_kube.core.crd import training_job_crd
from gangline_kube.core.resource import NAMESPACES, Object, Resource
from gangline_kube.service.api import Cluster, Conflict, NotFound, Unavailable

CRDS = Resource(
    "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition",
    namespaced=False,
)  # fmt: skip
PRIORITY_CLASSES = Resource(
    "scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", namespaced=False
)

DRY_RUN = {"dryRun": "All", "fieldValidation": "Strict", "fieldManager": "tests"}


def create(api: Cluster, of: Resource, item: Object, space: str = "") -> Object:
    """Create an object; the answer of the server. Raises KubeError."""
    return api._ask("POST", of.path(space), body=item)


def try_create(api: Cluster, of: Resource, item: Object, space: str = "") -> Object:
    """The object as it would be created, with each field checked. Raises KubeError."""
    return api._ask("POST", of.path(space), body=item, query=DRY_RUN)


def delete(api: Cluster, of: Resource, name: str, space: str = "", *, uid: str = "") -> None:
    """Delete at once: a pod gets no time to end. Raises KubeError."""
    options: Object = {"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0}
    if uid:
        options["preconditions"] = {"uid": uid}
    api._ask("DELETE", of.path(space, name), body=options)


def define_training_jobs(api: Cluster) -> None:
    """Create the definition of TrainingJob, and wait until its objects are served."""
    define(api, training_job_crd())


def define(api: Cluster, definition: Object, limit_s: float = 30.0) -> None:
    """Create a definition of a kind, and wait until its objects are served."""
    with contextlib.suppress(Conflict):
        api._ask("POST", CRDS.path(), body=definition, query={"fieldValidation": "Strict"})
    spec = definition["spec"]
    path = f"/apis/{spec['group']}/{spec['versions'][0]['name']}/{spec['names']['plural']}"
    deadline = time.monotonic() + limit_s
    while True:
        try:
            read(api, path)
            return
        except (NotFound, Unavailable):
            if time.monotonic() > deadline:
                raise
        time.sleep(0.05)


def new_namespace(api: Cluster, **metadata: Any) -> str:
    """Create a namespace; returns its name, which no other has."""
    name = f"gangline-test-{uuid.uuid4().hex[:8]}"
    create(
        api,
        NAMESPACES,
        {"apiVersion": "v1", "kind": "Namespace"} | {"metadata": metadata | {"name": name}},
    )
    return name


def resources(api: Cluster) -> dict[tuple[str, str], Resource]:
    """All resources that the server has, by their apiVersion and kind."""
    found = {}
    groups = [each["preferredVersion"]["groupVersion"] for each in read(api, "/apis")["groups"]]
    for version in ("v1", *groups):
        root = "/api" if version == "v1" else "/apis"
        for each in read(api, f"{root}/{version}")["resources"]:
            group, _, number = version.rpartition("/")
            if "/" not in each["name"]:
                found[version, each["kind"]] = Resource(
                    group, number, each["name"], each["kind"], namespaced=each["namespaced"]
                )
    return found


def read(api: Cluster, path: str) -> Object:
    """The answer to a GET. Raises KubeError."""
    return api._ask("GET", path)
