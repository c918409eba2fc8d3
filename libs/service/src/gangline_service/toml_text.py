"""Writes TOML, as files of settings need it; `tomllib` reads it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def toml_text(content: Mapping[str, Any]) -> str:
    """The values of `content`, then its tables; tables that are empty are left out.

    Values are texts, numbers, booleans, and lists and tables of these. Raises TypeError for others,
    and ValueError for numbers that are not finite.
    """
    tables = {name: value for name, value in content.items() if isinstance(value, Mapping)}
    plain = {name: value for name, value in content.items() if name not in tables}
    parts = [_lines(plain)]
    parts += [f"[{_key(name)}]\n{_lines(table)}" for name, table in tables.items() if table]
    return "\n".join(part for part in parts if part)


def _lines(values: Mapping[str, Any]) -> str:
    return "".join(f"{_key(name)} = {_value(value)}\n" for name, value in values.items())


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _value(name)


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(name)} = {_value(one)}" for name, one in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_value, value)) + "]"
    if not isinstance(value, str | int | float):
        raise TypeError(f"TOML has no {type(value).__name__}")
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    return text.replace("\x7f", "\\u007f")  # the one control character that JSON writes as it is
