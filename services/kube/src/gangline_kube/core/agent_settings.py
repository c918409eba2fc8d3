"""The settings of a node's agent that follow from the node's labels in Kubernetes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

from gangline_kube.core.nodes import node_id
from gangline_kube.core.resource import Object


def agent_settings(node: Object, rack: str, block: str, copied: Iterable[str]) -> dict[str, Any]:
    """Its id, and its place and labels.

    `rack`, `block`: the labels that name them; a node without one stays in the first. `copied`:
    labels, with wildcards, that jobs can choose nodes by.
    """
    labels: Mapping[str, str] = node["metadata"].get("labels") or {}
    patterns = tuple(copied)
    own = {
        name: value
        for name, value in sorted(labels.items())
        if any(fnmatchcase(name, pattern) for pattern in patterns)
    }
    found: dict[str, Any] = {"node_id": node_id(node["metadata"]["name"]), "node_labels": own}
    for setting, label in (("rack", rack), ("block", block)):
        if labels.get(label):
            found[setting] = labels[label]
    return found


def settings_text(base: Mapping[str, Any], own: Mapping[str, Any]) -> str:
    """A settings file in TOML: the shared keys and the table [agent] of `base`, and `own`."""
    shared = {name: value for name, value in base.items() if not isinstance(value, dict)}
    tables = {"kafka": base.get("kafka") or {}, "agent": {**base.get("agent", {}), **own}}
    lines = [f"{name} = {_toml(value)}\n" for name, value in shared.items()]
    for table, values in tables.items():
        if values:
            lines.append(f"\n[{table}]\n")
            lines += [f"{json.dumps(name)} = {_toml(value)}\n" for name, value in values.items()]
    return "".join(lines)


def _toml(value: Any) -> str:
    """Texts, numbers, booleans and lists are written in TOML as in JSON; tables are not."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json.dumps(k)} = {_toml(v)}" for k, v in value.items()) + "}"
    return json.dumps(value, ensure_ascii=False)
