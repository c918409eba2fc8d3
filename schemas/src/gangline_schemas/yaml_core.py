"""YAML as people write it: only true and false are booleans, and 3e-4 is a number.

PyYAML follows YAML 1.1, where the key `on` is the boolean true, `3e-4` a text, `10:30` the number
630 and a date no JSON value. Here scalars are resolved by the core schema of YAML 1.2.
"""

from __future__ import annotations

import re
from typing import Any

import yaml
from yaml.composer import ComposerError

_BOOL = "tag:yaml.org,2002:bool"
_INT = "tag:yaml.org,2002:int"
_FLOAT = "tag:yaml.org,2002:float"
_DATE = "tag:yaml.org,2002:timestamp"
_MERGE = "tag:yaml.org,2002:merge"


class CoreLoader(yaml.SafeLoader):
    """A safe loader whose plain scalars are those of YAML 1.2, and whose keys come once."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """A mapping. Raises ComposerError for a key that comes again: PyYAML takes the last."""
        node: yaml.MappingNode = super().compose_mapping_node(anchor)
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != _MERGE:
                if key.value in seen:
                    problem = f"{key.value} is given twice"
                    raise ComposerError(problem=problem, problem_mark=key.start_mark)
                seen.add(key.value)
        return node


class CoreDumper(yaml.SafeDumper):
    """Writes what `CoreLoader` reads; texts that it would take for something else are quoted."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - PyYAML's
        """Write equal values twice: a job file with anchors is hard to read."""
        return True


for _kind in (CoreLoader, CoreDumper):
    _kind.yaml_implicit_resolvers = {
        first: [
            (tag, pattern) for tag, pattern in resolvers if tag not in {_BOOL, _INT, _FLOAT, _DATE}
        ]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    _kind.add_implicit_resolver(
        _BOOL, re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF")
    )
    _kind.add_implicit_resolver(
        _INT, re.compile(r"^(?:[-+]?(?:0|[1-9][0-9]*)|0x[0-9a-fA-F]+)$"), list("-+0123456789")
    )
    _kind.add_implicit_resolver(
        _FLOAT,
        re.compile(
            r"^(?:[-+]?(?:\.[0-9]+|[0-9]+\.[0-9]*)(?:[eE][-+]?[0-9]+)?"
            r"|[-+]?[0-9]+[eE][-+]?[0-9]+"
            r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
        ),
        list("-+0123456789."),
    )


def load_yaml(text: str) -> Any:
    """The value of one YAML document. Raises yaml.YAMLError."""
    return yaml.load(text, Loader=CoreLoader)  # noqa: S506 -- derived from SafeLoader
