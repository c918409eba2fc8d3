r"""The CustomResourceDefinition of TrainingJob, made from the model of jobs.

Kubernetes takes structural schemas only: no references, no alternatives of types. Its patterns are
of RE2, which has no lookaheads, and writes the character \u2028 as \x{2028}.
The gateway validates each job, also by the rules that such a schema cannot have.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from gangline_kube.core.resource import GROUP, TRAINING_JOBS, Object
from gangline_kube.core.training_job import LEFT_OUT
from gangline_schemas.job import JobSpec

_KEPT = (
    "type", "description", "enum", "minimum", "maximum", "minLength", "maxLength", "minItems",
    "maxItems", "maxProperties", "required",
)  # fmt: skip
_LARGEST = 2**53
"""API servers read a limit as a float; a larger one would not be an integer of 64 bits any more."""
_LONG_ESCAPE = re.compile(r"\\u([0-9a-f]{4})")
_FREE: Object = {"x-kubernetes-preserve-unknown-fields": True}
_INT_OR_STRING: Object = {"x-kubernetes-int-or-string": True}
_STATUS: Object = {
    "jobId": {"type": "string"},
    "state": {"type": "string"},
    "ended": {"type": "boolean", "description": "The job has ended; nothing changes any more."},
    "reason": {"type": "string"},
    "attempt": {"type": "integer"},
    "restarts": {"type": "integer"},
    "gpus": {"type": "integer", "description": "Allocated now."},
    "step": {"type": "integer", "nullable": True},
    "totalSteps": {"type": "integer", "nullable": True},
    "startedAt": {"type": "string", "format": "date-time", "nullable": True},
    "endedAt": {"type": "string", "format": "date-time", "nullable": True},
}


def training_job_crd() -> Object:
    """The definition, as JSON."""
    names = TRAINING_JOBS
    schema = {
        "type": "object",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": _spec(),
            "status": {"type": "object", "properties": _STATUS},
        },
    }
    version = {
        "name": names.version,
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "additionalPrinterColumns": [
            _column("State", "string", ".status.state"),
            _column("GPUs", "integer", ".spec.resources.gpus"),
            _column("Step", "integer", ".status.step"),
            _column("Age", "date", ".metadata.creationTimestamp"),
            _column("Job", "string", ".status.jobId", wide=True),
            _column("Reason", "string", ".status.reason", wide=True),
        ],
        "schema": {"openAPIV3Schema": schema},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{names.plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": names.kind,
                "listKind": f"{names.kind}List",
                "plural": names.plural,
                "singular": names.kind.lower(),
                "shortNames": ["tj"],
            },
            "versions": [version],
        },
    }


def _column(name: str, kind: str, path: str, *, wide: bool = False) -> Object:
    column: Object = {"name": name, "type": kind, "jsonPath": path}
    return column | {"priority": 1} if wide else column


def _spec() -> Object:
    whole = JobSpec.model_json_schema(by_alias=False)
    found = structural(whole, whole.get("$defs", {}))
    properties = {name: part for name, part in found["properties"].items() if name not in LEFT_OUT}
    properties["priority"] = _INT_OR_STRING | {
        "description": found["properties"]["priority"].get("description", "")
    }
    return {
        "type": "object",
        "description": "The fields of a job file, without `name`: the object's name is the job's.",
        "required": [name for name in found["required"] if name not in LEFT_OUT],
        "properties": properties,
        "x-kubernetes-validations": [
            {"rule": "self.team == oldSelf.team", "message": "a job keeps its team"}
        ],
    }


def structural(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> Object:
    """A JSON Schema as a structural schema that accepts at least what the first one does."""
    if "$ref" in schema:
        target = definitions[schema["$ref"].rpartition("/")[2]]
        rest = {name: value for name, value in schema.items() if name != "$ref"}
        return structural({**target, **rest}, definitions)
    choices = schema.get("anyOf") or schema.get("oneOf") or schema.get("allOf")
    if choices:
        return _chosen(schema, choices, definitions)
    found = _limits(schema)
    kind = found.get("type")
    if kind == "array":
        items = schema.get("items")
        found["items"] = structural(items, definitions) if isinstance(items, dict) else dict(_FREE)
    elif kind == "object":
        found |= _members(schema, definitions)
    elif kind is None:
        found |= _FREE
    return found


def _limits(schema: Mapping[str, Any]) -> Object:
    """The type of a schema and what its values must keep to, without its parts."""
    found: Object = {name: schema[name] for name in _KEPT if name in schema}
    if found.get("maximum", 0) > _LARGEST:
        del found["maximum"]
    if "const" in schema:
        found["enum"] = [schema["const"]]
        found.setdefault("type", _type_of(schema["const"]))
    for name, least in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if name in schema:
            found |= {least: schema[name], name: True}
    if "(?" not in schema.get("pattern", "(?"):
        found["pattern"] = _LONG_ESCAPE.sub(r"\\x{\1}", schema["pattern"])
    return found


def _chosen(
    schema: Mapping[str, Any], choices: list[Mapping[str, Any]], definitions: Mapping[str, Any]
) -> Object:
    """One of several schemas: the only one besides null, or anything."""
    real = [choice for choice in choices if choice.get("type") != "null"]
    described = {name: schema[name] for name in ("description",) if name in schema}
    found = structural(real[0], definitions) if len(real) == 1 else dict(_FREE)
    if len(real) < len(choices) and "type" in found:
        found["nullable"] = True
    return found | described


def _members(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> Object:
    if schema.get("properties"):
        return {
            "properties": {
                name: structural(part, definitions) for name, part in schema["properties"].items()
            }
        }
    values = schema.get("additionalProperties")
    if isinstance(values, dict) and values:
        return {"additionalProperties": structural(values, definitions)}
    return dict(_FREE)


def _type_of(value: object) -> str:
    kinds = {bool: "boolean", int: "integer", float: "number", str: "string"}
    return kinds[type(value)]
