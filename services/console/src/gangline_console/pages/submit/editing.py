"""Changes one field of a job file's text and leaves the rest of it as it is, comments too.

The text is composed to nodes with their places, and only the characters of the field are replaced.
A result that does not read as intended is refused: the field is then changed in the text by hand.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import yaml

from gangline_schemas.job_file import JobFileError, compose, read_document, write_yaml


class EditError(Exception):
    """The field cannot be changed in this text; the message says what to do."""


def set_field(text: str, field: str, value: Any) -> str:
    """The text with a field (dotted name) at a value; None takes the field out.

    Raises JobFileError where the text is not YAML, and EditError.
    """
    root = compose(text)
    path = field.split(".")
    if root is None:
        changed = text if value is None else _line_added(text, len(text), 0, path, value)
    elif isinstance(root, yaml.MappingNode):
        changed = _changed(text, root, path, value)
    else:
        raise EditError("the file must hold fields: change it by hand")
    if _value(changed, path) != value:
        raise EditError(f"{field} cannot be changed from the form in this file: change it by hand")
    return changed


def _value(text: str, path: Sequence[str]) -> Any:
    try:
        found: Any = read_document(text).content if text.strip() else {}
    except JobFileError:
        return None
    for part in path:
        found = found.get(part) if isinstance(found, dict) else None
    return found


def _changed(text: str, root: yaml.MappingNode, path: Sequence[str], value: Any) -> str:
    mapping, above = root, list[tuple[yaml.MappingNode, int]]()
    for depth, name in enumerate(path):
        at = _index(mapping, name)
        if at is None:
            return text if value is None else _inserted(text, mapping, path[depth:], value)
        key, found = mapping.value[at]
        if found.start_mark.index < key.end_mark.index:  # an alias of a value before it
            raise EditError(f"{name} is an alias in this file: change it by hand")
        above.append((mapping, at))
        rest = path[depth + 1 :]
        if rest and isinstance(found, yaml.MappingNode):
            mapping = found
        elif rest or value is not None:
            return _replaced(text, mapping, at, _nested(rest, value))
    return _removed(text, above)


def _index(mapping: yaml.MappingNode, name: str) -> int | None:
    for at, (key, _) in enumerate(mapping.value):
        if isinstance(key, yaml.ScalarNode) and key.value == name:
            return at
    return None


def _end(node: yaml.Node, text: str) -> int:
    """Where a value ends: the marks of blocks lie behind the comments that follow them."""
    if isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        last = node.value[-1]
        return _end(last[1] if isinstance(node, yaml.MappingNode) else last, text)
    start, end = node.start_mark.index, node.end_mark.index
    return int(start + len(text[start:end].rstrip()))


def _replaced(text: str, mapping: yaml.MappingNode, at: int, value: Any) -> str:
    key, found = mapping.value[at]
    start, end = found.start_mark.index, _end(found, text)
    block = isinstance(found, yaml.CollectionNode) and not found.flow_style
    written = None if mapping.flow_style else _block(value, key.start_mark.column)
    if block or written is not None or getattr(found, "style", None) in {"|", ">"}:
        start = key.end_mark.index
        return f"{text[:start]}:{written or f' {_inline(value)}'}{text[end:]}"
    gap = "" if text[start - 1 : start].isspace() else " "
    return f"{text[:start]}{gap}{_inline(value)}{text[end:]}"


def _inserted(text: str, mapping: yaml.MappingNode, path: Sequence[str], value: Any) -> str:
    if not mapping.flow_style:
        end = _end(mapping, text)
        line_end = text.find("\n", end)
        at = len(text) if line_end < 0 else line_end
        return _line_added(text, at, mapping.start_mark.column, path, value)
    close = mapping.end_mark.index - 1
    before = text[:close].rstrip()
    comma = "" if not mapping.value or before.endswith(",") else ","
    space = " " if mapping.value else ""
    item = f"{_inline(path[0])}: {_inline(_nested(path[1:], value))}"
    return f"{before}{comma}{space}{item}{text[close:]}"


def _line_added(text: str, at: int, indent: int, path: Sequence[str], value: Any) -> str:
    before, nested = text[:at], _nested(path[1:], value)
    written = _block(nested, indent) or f" {_inline(nested)}"
    gap = "" if not before or before.endswith("\n") else "\n"
    return f"{before}{gap}{' ' * indent}{_inline(path[0])}:{written}{text[at:] or chr(10)}"


def _removed(text: str, above: list[tuple[yaml.MappingNode, int]]) -> str:
    mapping, at = above.pop()
    if len(mapping.value) == 1 and above:
        return _removed(text, above)
    key, found = mapping.value[at]
    start, end = key.start_mark.index, max(key.end_mark.index + 1, _end(found, text))
    if not mapping.flow_style:
        line_end = text.find("\n", end)
        line_start = text.rfind("\n", 0, start) + 1
        return text[:line_start] + ("" if line_end < 0 else text[line_end + 1 :])
    if at + 1 < len(mapping.value):
        return text[:start] + text[mapping.value[at + 1][0].start_mark.index :]
    if at:
        start = _end(mapping.value[at - 1][1], text)
    return text[:start] + text[end:]


def _nested(path: Sequence[str], value: Any) -> Any:
    for name in reversed(path):
        value = {name: value}
    return value


def _inline(value: Any) -> str:
    return write_yaml(value, flow=True)


def _block(value: Any, indent: int) -> str | None:
    """A text of several lines, or a mapping of several values, below its key; None of others."""
    inner = " " * (indent + 2)
    if isinstance(value, dict) and len(value) > 1:
        lines = [f"{_inline(name)}: {_inline(item)}" for name, item in value.items()]
        return "\n" + "\n".join(f"{inner}{line}" for line in lines)
    if isinstance(value, str) and "\n" in value:
        keep = "|" if value.endswith("\n") else "|-"
        lines = value.removesuffix("\n").split("\n")
        return f" {keep}\n" + "\n".join(f"{inner}{line}" if line else "" for line in lines)
    return None
