"""The text of a job file: YAML to a mapping whose fields have lines, and a spec to YAML.

Where the text comes from does not matter, so it may be hostile: aliases that stand for more than
`MOST_VALUES` values, cycles and brackets without end are refused before a value is made.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from .job import JobSpec
from .yaml_core import CoreDumper, CoreLoader

MOST_CHARS = 512 * 1024
MOST_VALUES = 50_000
_WORD_BOUNDARY = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_OWN_NAMES = {"checkpoint_policy": "checkpoint"}


class JobFileError(Exception):
    """The text is not a job file; `line` counts from 1."""

    def __init__(self, message: str, line: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.line = line


@dataclass(frozen=True)
class JobDocument:
    """The fields of a job file, and the line of each by its dotted name (`resources.gpus`)."""

    content: dict[str, Any]
    lines: Mapping[str, int]

    def line(self, field: str) -> int | None:
        """The line of a field, else of the nearest field around it; None where there is none."""
        parts = field.split(".")
        for most in range(len(parts), 0, -1):
            found = self.lines.get(".".join(parts[:most]))
            if found is not None:
                return found
        return None


def read_document(text: str) -> JobDocument:
    """Read the text of a job file. Raises JobFileError; fields are checked by JobSpec."""
    root = compose(text)
    if not isinstance(root, yaml.MappingNode):
        raise JobFileError("must hold fields such as name, team, command and resources", None)
    loader = CoreLoader("")
    try:
        content = loader.construct_document(root)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise _not_yaml(error) from None
    finally:
        loader.dispose()
    return JobDocument(content, dict(_lines(root, "")))


def compose(text: str) -> yaml.Node | None:
    """The document's nodes with their places; None of an empty text. Raises JobFileError."""
    if len(text) > MOST_CHARS:
        raise JobFileError(f"has {len(text):,} characters; at most {MOST_CHARS:,}")
    try:
        root: yaml.Node | None = yaml.compose(text, Loader=CoreLoader)
        if root is not None:
            _count(root, {})
    except (yaml.YAMLError, RecursionError) as error:
        raise _not_yaml(error) from None
    return root


def write_document(spec: JobSpec) -> str:
    """A job file of the spec; fields at their default are left out."""
    fields = spec.without_diff().model_dump(mode="json", exclude_defaults=True)
    fields.pop("code_diff_digest", None)
    return write_yaml({"version": spec.version, **fields})


def write_yaml(value: Any, *, flow: bool = False) -> str:
    """A value as YAML, as this module reads it; with `flow` on one line."""
    text: str = yaml.dump(
        value,
        Dumper=CoreDumper,
        sort_keys=False,
        allow_unicode=True,
        default_flow_style=True if flow else None,
        width=1 << 20 if flow else 96,
    )
    return text.removesuffix("...\n").rstrip("\n") if flow else text


def _count(node: yaml.Node, known: dict[int, int]) -> int:
    """Values that a node stands for with all aliases replaced. Raises JobFileError."""
    before = known.get(id(node))
    if before is not None:
        if before < 0:
            raise JobFileError("an alias stands for itself", node.start_mark.line + 1)
        return before
    known[id(node)] = -1
    found = 1 + sum(_count(part, known) for part in _parts(node))
    if found > MOST_VALUES:
        raise JobFileError(f"holds more than {MOST_VALUES:,} values", node.start_mark.line + 1)
    known[id(node)] = found
    return found


def _parts(node: yaml.Node) -> Iterator[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield key
            yield value
    elif isinstance(node, yaml.SequenceNode):
        yield from node.value


def _lines(node: yaml.Node, path: str) -> Iterator[tuple[str, int]]:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode):
                inner = f"{path}.{_name(key.value)}" if path else _name(key.value)
                yield inner, key.start_mark.line + 1
                if value.start_mark.index > key.start_mark.index:  # else an alias of one before
                    yield from _lines(value, inner)
    elif isinstance(node, yaml.SequenceNode):
        for number, value in enumerate(node.value):
            yield f"{path}.{number}", value.start_mark.line + 1
            yield from _lines(value, f"{path}.{number}")


def _name(key: str) -> str:
    """The field's own name: keys may be in camelCase too."""
    name = _WORD_BOUNDARY.sub("_", key).lower() if key.isidentifier() else key
    return _OWN_NAMES.get(name, name)


def _not_yaml(error: Exception) -> JobFileError:
    if isinstance(error, RecursionError):
        return JobFileError("has too many brackets within brackets")
    place, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
    why = f": {problem}" if problem else ""
    return JobFileError(f"is not YAML{why}", place.line + 1 if place else None)
