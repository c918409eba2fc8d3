"""The accounts of the chart may do what their processes do, and nothing else.

The processes run with tokens of these accounts alone. The server's audit log says which rights they
used; each right that the chart gives is used, and all others are refused.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from gangline_kube.core.resource import NAMESPACES, NODES, Resource
from gangline_kube.node_settings import NodeSettingsSettings, main
from gangline_kube.service.api import Cluster, Conflict
from kube.accounts import Account, Right, installed
from kube.kubelet import node
from kube.plane import ACCOUNTS, ControlPlane
from support.builders.helm_chart import HELM
from support.clients.kube_objects import create, delete, new_namespace, read
from support.fakes.job_gateway import JobGateway
from support.fixtures.kube import needs_kube
from support.harnesses.kube_operator import OperatorProcess, TrainingJobs

REVIEWS = Resource(
    "authorization.k8s.io", "v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview",
    namespaced=False,
)  # fmt: skip
VERBS = ("get", "list", "watch", "create", "update", "patch", "delete", "deletecollection")
pytestmark = [
    needs_kube,
    pytest.mark.skipif(HELM is None, reason="no helm: `make test-kube` builds it"),
]


@pytest.fixture(scope="module")
def everybody(
    control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> frozenset[Right]:
    """The rights of an account that got none: such as to ask about itself."""
    api = control_plane.cluster()
    space = new_namespace(api)
    create(api, ACCOUNTS, {"metadata": {"name": "nobody"}}, space)
    path = tmp_path_factory.mktemp("nobody") / "kubeconfig"
    return frozenset(allowed(control_plane.account_kubeconfig(space, "nobody", path)))


@pytest.fixture
def own_node(control_plane: ControlPlane) -> Iterator[str]:
    api = control_plane.cluster()
    create(api, NODES, node("rights-1", 8))
    yield "rights-1"
    delete(api, NODES, "rights-1")


def allowed(kubeconfig: Path, space: str = "") -> set[Right]:
    """All rights that an account has over the server's resources, in a namespace or in all."""
    api, found = Cluster(kubeconfig), set()
    for version in ["v1", *_versions(api)]:
        group = version.rpartition("/")[0]
        root = "/apis" if group else "/api"
        for each in read(api, f"{root}/{version}")["resources"]:
            resource, _, part = each["name"].partition("/")
            for verb in VERBS:
                of = {"group": group, "resource": resource, "subresource": part}
                asked = {"verb": verb, "namespace": space, **of}
                review = {"spec": {"resourceAttributes": asked}}
                if create(api, REVIEWS, review)["status"]["allowed"]:
                    found.add((verb, group, each["name"]))
    return found


def _versions(api: Cluster) -> list[str]:
    return [each["preferredVersion"]["groupVersion"] for each in read(api, "/apis")["groups"]]


def check(account: Account) -> None:
    """It was refused nothing, and used each of its rights."""
    assert account.denied() == []
    assert account.used() == account.rights


@pytest.mark.parametrize(
    ("values", "namespaces", "space"),
    [
        ("minimal", "", ""),
        ("operator-only", "nlp,vision", "nlp"),
        ("gpu-monitor", "team-*", "team-a"),
    ],
    ids=["all", "named", "wildcards"],
)
def test_the_operator_of_objects(
    control_plane: ControlPlane,
    everybody: frozenset[Right],
    values: str,
    namespaces: str,
    space: str,
    tmp_path: Path,
) -> None:
    account, api = (
        installed(control_plane, values)["gangline-kube-operator"],
        control_plane.cluster(),
    )
    config = account.kubeconfig(tmp_path)
    if space:
        with contextlib.suppress(Conflict):
            create(api, NAMESPACES, {"metadata": {"name": space}})
    with (
        JobGateway() as gateway,
        TrainingJobs(api, space) as objects,
        OperatorProcess(
            config, gateway.url, tmp_path, GANGLINE_KUBE_NAMESPACES=namespaces
        ) as operator,
    ):
        objects.create("one", priority=20)
        operator.wait("submitted", lambda: objects.states().get("one") == "pending")
        objects.change("one", priority=5)
        operator.wait("priority", lambda: 5 in gateway.priorities.values())
        objects.create("foreign", team="ads")
        operator.wait("refused", lambda: objects.states().get("foreign") == "rejected")
        gateway.set("running")
        operator.wait("mirrored", lambda: objects.states()["one"] == "running")
        for name in ("one", "foreign"):
            objects.delete(name)
        operator.wait("deleted", lambda: not objects.states())
        assert len(gateway.cancelled) == 1
    check(account)
    if values == "operator-only":
        assert allowed(config) == everybody
        assert allowed(config, "nlp") == account.rights | everybody
    elif values == "minimal":
        assert allowed(config) == account.rights | everybody


def test_the_process_that_follows_nodes(
    control_plane: ControlPlane, everybody: frozenset[Right], tmp_path: Path, own_node: str
) -> None:
    account = installed(control_plane, "minimal")["gangline-kube"]
    api, config = control_plane.cluster(), account.kubeconfig(tmp_path)
    with (
        JobGateway() as gateway,
        OperatorProcess(config, gateway.url, tmp_path, "gangline_kube") as process,
    ):
        gateway.nodes = {own_node: "draining"}
        process.wait("cordoned", lambda: _cordoned(api, own_node))
        gateway.nodes[own_node] = "ready"
        process.wait("free", lambda: not _cordoned(api, own_node))
    check(account)
    assert allowed(config) == account.rights | everybody


def _cordoned(api: Cluster, name: str) -> bool:
    return bool(api.get(NODES, name)["spec"].get("unschedulable"))


def test_the_settings_of_an_agent(
    control_plane: ControlPlane, everybody: frozenset[Right], tmp_path: Path, own_node: str
) -> None:
    account = installed(control_plane, "minimal")["gangline-agent"]
    config = account.kubeconfig(tmp_path)
    main(
        NodeSettingsSettings(
            kubeconfig=config, kube_node=own_node, kube_target=tmp_path / "gangline.toml"
        )
    )
    check(account)
    assert allowed(config) == account.rights | everybody
