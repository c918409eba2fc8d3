"""The settings of a node's agent that follow from the node's labels in Kubernetes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

from gangline_kube.core.nodes import node_id
from gangline_kube.core.resource import GROUP, Object

POOL = f"{GROUP}/pool"
"""The label by which jobs choose a pool."""


def agent_settings(
    node: Object, rack: str, block: str, copied: Iterable[str], pool: str
) -> dict[str, Any]:
    """Its id, and its place and labels.

    `rack`, `block`: the labels that name them; a node without one stays in the first. `copied`:
    labels, with wildcards, that jobs can choose nodes by. `pool`: the agent's; "": it has none.
    """
    labels: Mapping[str, str] = node["metadata"].get("labels") or {}
    patterns = tuple(copied)
    own = {
        name: value
        for name, value in sorted(labels.items())
        if any(fnmatchcase(name, pattern) for pattern in patterns)
    }
    if pool:
        own[POOL] = pool
    found: dict[str, Any] = {"node_id": node_id(node["metadata"]["name"]), "node_labels": own}
    for setting, label in (("rack", rack), ("block", block)):
        if labels.get(label):
            found[setting] = labels[label]
    return found


def merged_settings(base: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """A settings file: the shared keys and the tables [kafka] and [agent] of `base`, and `own`."""
    shared = {name: value for name, value in base.items() if not isinstance(value, dict)}
    tables = {"kafka": base.get("kafka", {}), "agent": {**base.get("agent", {}), **own}}
    return {**shared, **tables}
