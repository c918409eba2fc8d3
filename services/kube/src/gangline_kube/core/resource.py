"""The kinds of objects that Gangline reads and writes in Kubernetes, and their paths."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import AfterValidator

_NAME = re.compile(r"[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?")


def _kube_name(value: str) -> str:
    if not _NAME.fullmatch(value):
        raise ValueError("must be a name in Kubernetes: 1 to 253 of a-z, 0-9, '-' and '.'")
    return value


KubeName = Annotated[str, AfterValidator(_kube_name)]
"""A name of an object in Kubernetes."""
Object = dict[str, Any]
"""An object of Kubernetes, as its JSON."""
GROUP = "gangline.dev"
"""The group of our own kinds, and the prefix of our labels, annotations and taints."""


@dataclass(frozen=True, slots=True)
class Resource:
    """A kind of objects, in one version of its API."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool

    def path(self, namespace: str = "", name: str = "", part: str = "") -> str:
        """The path of all objects, of those of a namespace, of one, or of a part of it."""
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        spaced = f"namespaces/{namespace}" if self.namespaced and namespace else ""
        return "/".join(each for each in (root, spaced, self.plural, name, part) if each)


NODES = Resource("", "v1", "nodes", "Node", namespaced=False)
PODS = Resource("", "v1", "pods", "Pod", namespaced=True)
SERVICES = Resource("", "v1", "services", "Service", namespaced=True)
NETWORK_POLICIES = Resource(
    "networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy", namespaced=True
)
NAMESPACES = Resource("", "v1", "namespaces", "Namespace", namespaced=False)
TRAINING_JOBS = Resource(GROUP, "v1", "trainingjobs", "TrainingJob", namespaced=True)


def part_of(found: Object, **fields: tuple[str, ...]) -> Object:
    """These fields of an object: processes keep thousands of objects, and most of one is unread."""
    return {
        part: {name: value for name, value in (found.get(part) or {}).items() if name in names}
        for part, names in fields.items()
    }


def annotation(found: Object, name: str) -> str | None:
    """One of our annotations of an object, by its name without the prefix."""
    value = (found["metadata"].get("annotations") or {}).get(f"{GROUP}/{name}")
    return None if value is None else str(value)
