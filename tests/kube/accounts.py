"""The service accounts of the chart, with their rights, at a control plane."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gangline_kube.core.resource import NAMESPACES, Object
from gangline_kube.service.api import Cluster, Conflict
from kube.plane import ControlPlane
from support.builders.helm_chart import example, rendered
from support.clients.kube_objects import create, resources

KINDS = {
    "ServiceAccount",
    "ClusterRole",
    "ClusterRoleBinding",
    "Role",
    "RoleBinding",
}
Right = tuple[str, str, str]
"""A verb, a group, and a resource with its part, such as `pods/status`."""


@dataclass(frozen=True)
class Account:
    """An account of the chart's namespace, with the rights that the chart gives it."""

    plane: ControlPlane
    namespace: str
    name: str
    rights: frozenset[Right]
    """Over all namespaces, or over those that the values name."""

    def kubeconfig(self, folder: Path) -> Path:
        """A kubeconfig with a token of it."""
        return self.plane.account_kubeconfig(self.namespace, self.name, folder / self.name)

    def used(self) -> set[Right]:
        """The rights that its requests needed so far."""
        found = set()
        for event in self.plane.audit(self.namespace, self.name):
            of = event.get("objectRef")
            if of is not None and not of.get("apiGroup", "").startswith("authorization."):
                part = f"/{of['subresource']}" if "subresource" in of else ""
                found.add((event["verb"], of.get("apiGroup", ""), f"{of['resource']}{part}"))
        return found

    def denied(self) -> list[str]:
        """The paths of its requests that were refused."""
        return [
            f"{event['verb']} {event['requestURI']}"
            for event in self.plane.audit(self.namespace, self.name)
            if event.get("responseStatus", {}).get("code") in {401, 403}
        ]


def installed(plane: ControlPlane, values: str) -> dict[str, Account]:
    """Create the accounts and rights of an example in a namespace; the accounts by name."""
    namespace = f"gangline-{values}"
    items = [each for each in rendered(example(values), namespace) if each["kind"] in KINDS]
    api = plane.cluster()
    known = resources(api)
    for item in items:
        of = known[item["apiVersion"], item["kind"]]
        space = item["metadata"].get("namespace", namespace) if of.namespaced else ""
        if space:
            names = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": space}}
            _create(api, NAMESPACES, names)
        _create(api, of, item, space)
    roles = {(each["kind"], each["metadata"]["name"]): each for each in items}
    found: dict[str, set[Right]] = {
        each["metadata"]["name"]: set() for each in items if each["kind"] == "ServiceAccount"
    }
    for binding in items:
        for subject in binding.get("subjects", []):
            role = roles[binding["roleRef"]["kind"], binding["roleRef"]["name"]]
            found[subject["name"]] |= _rights(role["rules"])
    return {
        name: Account(plane, namespace, name, frozenset(rights)) for name, rights in found.items()
    }


def _create(api: Cluster, of: Any, item: Object, space: str = "") -> None:
    with contextlib.suppress(Conflict):
        create(api, of, item, space)


def _rights(rules: list[Object]) -> set[Right]:
    return {
        (verb, group, resource)
        for rule in rules
        for verb in rule["verbs"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }
