"""The objects of the in-memory API server, their history, and its rules about changes."""

from __future__ import annotations

import asyncio
import copy
import secrets
import uuid
from collections import deque
from datetime import UTC, datetime

from support.fakes.kube_objects import BUILT_IN, Json, Kind, Refused, check_patterns, validated

HISTORY = 100_000
_SERVER_FIELDS = ("uid", "creationTimestamp", "deletionTimestamp", "generation")


class Store:
    """Objects and their history, in the server's thread alone."""

    def __init__(self) -> None:
        self.version = 1
        self.kinds = {(kind.group, kind.plural): copy.deepcopy(kind) for kind in BUILT_IN}
        self.history: deque[tuple[int, str, Kind, Json]] = deque(maxlen=HISTORY)
        self.oldest = 0
        self.news = asyncio.Event()

    def kind(self, group: str, plural: str) -> Kind:
        found = self.kinds.get((group, plural))
        if found is None:
            raise Refused(404, "the server could not find the requested resource")
        return found

    def get(self, kind: Kind, namespace: str, name: str) -> Json:
        found = kind.objects.get((namespace, name))
        if found is None:
            raise Refused(404, f'{kind.plural} "{name}" not found')
        return found

    def write(self, event: str, kind: Kind, item: Json) -> Json:
        """Keep an object, or forget it, under the next resource version."""
        self.version += 1
        metadata = item["metadata"]
        metadata["resourceVersion"] = str(self.version)
        place = metadata.get("namespace", ""), metadata["name"]
        if event == "DELETED":
            kind.objects.pop(place, None)
        else:
            kind.objects[place] = item
        if len(self.history) == HISTORY:
            self.oldest = self.history[0][0]
        self.history.append((self.version, event, kind, copy.deepcopy(item)))
        self.news.set()
        self.news = asyncio.Event()
        return item

    def create(self, kind: Kind, namespace: str, item: Json, *, strict: bool) -> Json:
        metadata = item.setdefault("metadata", {})
        if metadata.get("generateName") and not metadata.get("name"):
            metadata["name"] = metadata["generateName"] + secrets.token_hex(3)[:5]
        if not metadata.get("name"):
            raise Refused(422, "metadata.name: Required value: name or generateName is required")
        if kind.namespaced:
            metadata["namespace"] = namespace
            if ("", namespace) not in self.kind("", "namespaces").objects:
                raise Refused(404, f'namespaces "{namespace}" not found')
        if (metadata.get("namespace", ""), metadata["name"]) in kind.objects:
            raise Refused(
                409, f'{kind.plural} "{metadata["name"]}" already exists', "AlreadyExists"
            )
        for name in _SERVER_FIELDS:
            metadata.pop(name, None)
        metadata |= {"uid": str(uuid.uuid4()), "creationTimestamp": _now(), "generation": 1}
        item.setdefault("apiVersion", kind.api_version)
        item.setdefault("kind", kind.kind)
        if kind.schema is not None:
            item = validated(item, kind.schema, strict=strict)
            item.pop("status", None)
        if kind.kind == "Pod":
            item["status"] = {"phase": "Pending"}
        if kind.kind == "CustomResourceDefinition":
            self._define(item)
        return self.write("ADDED", kind, item)

    def _define(self, item: Json) -> None:
        spec = item["spec"]
        version, names = spec["versions"][0], spec["names"]
        check_patterns(version["schema"]["openAPIV3Schema"])
        self.kinds[spec["group"], names["plural"]] = Kind(
            spec["group"],
            version["name"],
            names["plural"],
            names["kind"],
            namespaced=spec["scope"] == "Namespaced",
            parts=tuple(version.get("subresources", {})),
            short=tuple(names.get("shortNames", ())),
            schema=version["schema"]["openAPIV3Schema"],
        )
        item["status"] = {"conditions": [{"type": "Established", "status": "True"}]}

    def update(self, kind: Kind, old: Json, new: Json, part: str, *, strict: bool) -> Json:
        """Put a changed object in the place of the old one. Raises Refused."""
        was, now = old["metadata"], new["metadata"]
        if now.get("resourceVersion", was["resourceVersion"]) != was["resourceVersion"]:
            raise Refused(
                409,
                f'Operation cannot be fulfilled on {kind.plural} "{was["name"]}": the object has '
                "been modified; please apply your changes to the latest version and try again",
            )
        if part != "status" and now.get("uid", was["uid"]) != was["uid"]:
            raise Refused(422, f'metadata.uid: Invalid value: "{now["uid"]}": field is immutable')
        if part == "status":
            new = {**copy.deepcopy(old), "status": new.get("status", {})}
        elif "status" in kind.parts and "status" in old:
            new["status"] = copy.deepcopy(old["status"])
        elif "status" in kind.parts:
            new.pop("status", None)
        new["metadata"] |= {name: was[name] for name in _SERVER_FIELDS if name in was}
        new["metadata"] |= {"name": was["name"], "resourceVersion": was["resourceVersion"]}
        if kind.schema is not None:
            new = validated(new, kind.schema, strict=strict)
        if new == old:
            return old
        if new.get("spec") != old.get("spec"):
            new["metadata"]["generation"] = was["generation"] + 1
        if "deletionTimestamp" in was and not new["metadata"].get("finalizers"):
            return self.write("DELETED", kind, new)
        return self.write("MODIFIED", kind, new)

    def delete(self, kind: Kind, item: Json, options: Json) -> Json:
        """Delete at once, or once its finalizers are gone; a bound pod by a second request.

        The first request gives a pod its grace period, the second one comes from its kubelet.
        """
        uid = (options.get("preconditions") or {}).get("uid")
        if uid is not None and uid != item["metadata"]["uid"]:
            raise Refused(409, f"Precondition failed: UID in precondition: {uid}")
        grace_s = _grace_s(item, options) if kind.kind == "Pod" else 0
        held = item["metadata"].get("finalizers") or grace_s > 0
        if (held or kind.kind == "Pod") and "deletionTimestamp" not in item["metadata"]:
            item = copy.deepcopy(item)
            item["metadata"]["deletionTimestamp"] = _now()
            if kind.kind == "Pod":
                item["metadata"]["deletionGracePeriodSeconds"] = grace_s
            self.write("MODIFIED", kind, item)
        return item if held else self.write("DELETED", kind, copy.deepcopy(item))

    def since(self, version: int, kind: Kind) -> list[tuple[str, Json]]:
        """What happened to a kind after a version. Raises Refused if that is forgotten."""
        if version < self.oldest:
            raise Refused(410, f"too old resource version: {version} ({self.oldest})")
        found = []
        for at, event, of, item in reversed(self.history):
            if at <= version:
                break
            if of is kind:
                found.append((event, item))
        return found[::-1]


def _grace_s(pod: Json, options: Json) -> int:
    """The seconds that a pod has to end: none if no node runs it."""
    spec, phase = pod["spec"], pod.get("status", {}).get("phase")
    if not spec.get("nodeName") or phase in {"Succeeded", "Failed"}:
        return 0
    own = spec.get("terminationGracePeriodSeconds", 30)
    return int(options.get("gracePeriodSeconds", own))


def _now() -> str:
    return f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
