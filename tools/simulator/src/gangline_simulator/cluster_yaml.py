"""The YAML form of a cluster file; see cluster.py."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from gangline_simulator.errors import BadInputError

MOST_NODES = 100_000
_MOST_GPUS_PER_NODE = 1024
_KNOWN = ("nodes", "topology")


@dataclass(frozen=True, slots=True)
class Group:
    """Equal nodes. CPUs and memory of 0 mean: not said."""

    count: int = 1
    gpus: int = 8
    gpu_model: str = "gpu"
    cpus: float = 0.0
    memory_gb: float = 0.0
    rack: str = "rack-0"
    block: str = "block-0"
    pool: str = ""


def read_groups(path: Path) -> list[Group]:
    """The groups of nodes of a YAML file. Raises BadInputError that names entry and field."""
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInputError(path, f"cannot be read: {error.strerror or error}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise BadInputError(path, f"is no YAML: {' '.join(str(error).split())}") from None
    if not isinstance(document, Mapping) or not isinstance(document.get("nodes"), list):
        raise BadInputError(
            path, "needs a list of {count, gpus, gpu_model, cpus, memory_gb, rack, block}",
            field="nodes",
        )  # fmt: skip
    for key in document:
        if key not in _KNOWN:
            raise BadInputError(path, f"is not known; accepted: {', '.join(_KNOWN)}", field=key)
    parents = _topology(path, document.get("topology"))
    return [_group(path, index, entry, parents) for index, entry in enumerate(document["nodes"])]


def _group(path: Path, index: int, entry: Any, parents: Mapping[str, str | None]) -> Group:
    if not isinstance(entry, Mapping):
        raise BadInputError(path, "is no mapping like {count: 4, gpus: 8}", field=f"nodes[{index}]")
    known = tuple(Group.__dataclass_fields__)
    for key in entry:
        if key not in known:
            raise BadInputError(
                path, f"is not known; accepted: {', '.join(known)}", field=f"nodes[{index}].{key}"
            )
    rack, block = _text(entry, "rack", "rack-0"), _text(entry, "block", "block-0")
    if parents:
        if rack not in parents:
            raise BadInputError(
                path,
                f"{rack} is no domain of the topology; there are {', '.join(parents)}",
                field=f"nodes[{index}].rack",
            )
        block = _outermost(rack, parents)
    return Group(
        count=_count(path, index, entry, "count", 1, MOST_NODES),
        gpus=_count(path, index, entry, "gpus", 8, _MOST_GPUS_PER_NODE),
        gpu_model=_text(entry, "gpu_model", "gpu"),
        cpus=_number(path, index, entry, "cpus"),
        memory_gb=_number(path, index, entry, "memory_gb"),
        rack=rack,
        block=block,
        pool=_text(entry, "pool", ""),
    )


def _topology(path: Path, entries: Any) -> dict[str, str | None]:
    """Each domain's parent, None for the outermost; checked to be a forest."""
    if entries is None:
        return {}
    if not isinstance(entries, list):
        raise BadInputError(path, "is no list of {name, parent}", field="topology")
    parents: dict[str, str | None] = {}
    for index, entry in enumerate(entries):
        where = f"topology[{index}]"
        if not isinstance(entry, Mapping) or not _text(entry, "name", ""):
            raise BadInputError(path, "needs a name", field=f"{where}.name")
        name = _text(entry, "name", "")
        if name in parents:
            raise BadInputError(path, f"{name} is there twice", field=f"{where}.name")
        parents[name] = _text(entry, "parent", "") or None
    for index, (name, parent) in enumerate(parents.items()):
        where = f"topology[{index}].parent"
        if parent is not None and parent not in parents:
            raise BadInputError(
                path,
                f"{parent} is no domain of the topology; there are {', '.join(parents)}",
                field=where,
            )
        seen = [name]
        while (above := parents.get(seen[-1])) is not None:
            if above in seen:
                ring = " in ".join([*seen[seen.index(above) :], above])
                raise BadInputError(path, f"goes in a circle: {ring}", field=where)
            seen.append(above)
    return parents


def _outermost(name: str, parents: Mapping[str, str | None]) -> str:
    while (above := parents[name]) is not None:
        name = above
    return name


def _text(entry: Mapping[str, Any], field: str, default: str) -> str:
    value = entry.get(field)
    return default if value is None else str(value)


def _number(path: Path, index: int, entry: Mapping[str, Any], field: str) -> float:
    value = entry.get(field, 0)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _bad(path, index, field, f"{value!r} is no number")
    if not math.isfinite(value) or value < 0:
        raise _bad(path, index, field, f"{value} is out of range; accepted: a number from 0 up")
    return float(value)


def _count(
    path: Path, index: int, entry: Mapping[str, Any], field: str, default: int, most: int
) -> int:
    value = entry.get(field, default)
    if isinstance(value, bool) or not isinstance(value, int):
        raise _bad(path, index, field, f"{value!r} is no whole number")
    if not 0 <= value <= most:
        raise _bad(path, index, field, f"{value} is out of range; accepted: 0 to {most}")
    return value


def _bad(path: Path, index: int, field: str, message: str) -> BadInputError:
    return BadInputError(path, message, field=f"nodes[{index}].{field}")
