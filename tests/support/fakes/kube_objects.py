"""What the in-memory API server knows of kinds, errors, selectors, patches and schemas."""

from __future__ import annotations

import copy
import re
from dataclasses import dataclass, field
from typing import Any

import jsonpatch
import jsonschema

Json = dict[str, Any]
_RE2_ESCAPE = re.compile(r"\\x\{([0-9a-f]{4})\}")
_NOT_RE2 = re.compile(r"\\u|\(\?[=!<]")
_REASONS = {
    400: "BadRequest", 401: "Unauthorized", 403: "Forbidden", 404: "NotFound", 409: "Conflict",
    410: "Expired", 415: "UnsupportedMediaType", 422: "Invalid", 429: "TooManyRequests",
    500: "InternalError",
}  # fmt: skip


class Refused(Exception):
    """An answer with an error; `reason` is Kubernetes' word for it."""

    def __init__(self, status: int, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.status, self.reason = status, reason or _REASONS[status]

    def body(self) -> Json:
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": str(self),
            "reason": self.reason,
            "code": self.status,
        }


@dataclass
class Kind:
    """A kind of objects; `schema` is of a CustomResourceDefinition."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool
    parts: tuple[str, ...] = ("status",)
    short: tuple[str, ...] = ()
    schema: Json | None = None
    objects: dict[tuple[str, str], Json] = field(default_factory=dict)

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    def discovered(self) -> list[Json]:
        """Its entries in the list of a group's resources."""
        verbs = ["create", "delete", "get", "list", "patch", "update", "watch"]
        own = {
            "name": self.plural,
            "singularName": self.kind.lower(),
            "namespaced": self.namespaced,
            "kind": self.kind,
            "verbs": verbs,
            "shortNames": list(self.short),
        }
        part = {"namespaced": self.namespaced, "kind": self.kind, "singularName": ""}
        parts = [
            {**part, "name": f"{self.plural}/{name}", "verbs": ["get", "patch", "update"]}
            for name in self.parts
        ]
        return [own, *parts]


BUILT_IN = (
    Kind("", "v1", "namespaces", "Namespace", namespaced=False),
    Kind("", "v1", "nodes", "Node", namespaced=False),
    Kind("", "v1", "pods", "Pod", namespaced=True),
    Kind("", "v1", "services", "Service", namespaced=True),
    Kind(
        "networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy", namespaced=True, parts=(),
    ),
    Kind("", "v1", "events", "Event", namespaced=True, parts=()),
    Kind("", "v1", "secrets", "Secret", namespaced=True, parts=()),
    Kind(
        "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition",
        namespaced=False,
    ),
)  # fmt: skip


def merged(old: Any, change: Any) -> Any:
    """A JSON merge patch (RFC 7386)."""
    if not isinstance(change, dict):
        return change
    found = dict(old) if isinstance(old, dict) else {}
    for name, value in change.items():
        if value is None:
            found.pop(name, None)
        else:
            found[name] = merged(found.get(name), value)
    return found


def patched(old: Json, change: Any, content_type: str) -> Json:
    """The object after a patch. Raises Refused."""
    if content_type == "application/merge-patch+json":
        found: Json = merged(old, change)
        return found
    if content_type != "application/json-patch+json":
        raise Refused(415, f"{content_type} is not known here")
    try:
        return dict(jsonpatch.apply_patch(copy.deepcopy(old), change))
    except (jsonpatch.JsonPatchException, jsonpatch.JsonPointerException) as error:
        raise Refused(422, f"the patch does not fit: {error}") from None


def selects(fields: str, item: Json) -> bool:
    """Whether an object has these fields."""
    for term in fields.split(",") if fields else ():
        path, _, value = term.partition("=")
        found: Any = item
        for name in path.split("."):
            found = (found or {}).get(name)
        if (found or "") != value.lstrip("="):
            return False
    return True


def pruned(value: Any, schema: Json, path: str, unknown: list[str]) -> Any:
    """The value without fields that a structural schema does not have; they are in `unknown`."""
    if isinstance(value, list):
        items = schema.get("items", {})
        return [pruned(each, items, f"{path}[]", unknown) for each in value]
    if not isinstance(value, dict):
        return value
    known, values = schema.get("properties", {}), schema.get("additionalProperties")
    free = schema.get("x-kubernetes-preserve-unknown-fields")
    found = {}
    for name, each in value.items():
        inner = known.get(name, values)
        if inner is not None:
            found[name] = pruned(each, inner, f"{path}.{name}", unknown)
        elif free:
            found[name] = each
        else:
            unknown.append(f"{path}.{name}".lstrip("."))
    return found


def validated(item: Json, schema: Json, *, strict: bool) -> Json:
    """A custom object by its schema. Raises Refused, for unknown fields only if `strict`."""
    unknown: list[str] = []
    spared = {name: item[name] for name in ("apiVersion", "kind", "metadata")}
    rest = {name: each for name, each in item.items() if name not in spared}
    found = pruned(rest, schema, "", unknown)
    if unknown and strict:
        names = ", ".join(f'unknown field "{name}"' for name in unknown)
        raise Refused(400, f"strict decoding error: {names}")
    checked = _draft(schema)
    checked["required"] = [name for name in schema.get("required", ()) if name not in spared]
    for error in jsonschema.Draft202012Validator(checked).iter_errors(found):
        where = ".".join(str(part) for part in error.absolute_path)
        raise Refused(422, f"{where}: Invalid value: {error.message}")
    return {**spared, **found}


def check_patterns(schema: Any, path: str = "spec") -> None:
    """Raise Refused for a pattern that RE2 does not know."""
    if isinstance(schema, dict):
        pattern = schema.get("pattern")
        if isinstance(pattern, str) and _NOT_RE2.search(pattern):
            raise Refused(422, f"{path}.pattern: Invalid value: must be a valid regular expression")
        for name, part in schema.items():
            check_patterns(part, f"{path}.{name}")


def _draft(schema: Json) -> Json:
    """A structural schema as a JSON Schema."""
    found: Json = {}
    for name, value in schema.items():
        if name == "properties":
            found[name] = {each: _draft(part) for each, part in value.items()}
        elif name in {"items", "additionalProperties"} and isinstance(value, dict):
            found[name] = _draft(value)
        elif name == "pattern":
            found[name] = _RE2_ESCAPE.sub(r"\\u\1", value)
        elif name in {"exclusiveMinimum", "exclusiveMaximum"}:
            least = "minimum" if name == "exclusiveMinimum" else "maximum"
            found[name] = schema[least]
        elif name != "format":
            found[name] = value
    if schema.get("nullable") and "type" in found:
        found["type"] = [found["type"], "null"]
    if schema.get("x-kubernetes-int-or-string"):
        found["type"] = ["integer", "string"]
    return found
