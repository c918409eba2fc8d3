"""The canonical form of a state: equal for equal facts, in this version and in later ones.

JSON with sorted keys. A field at its default is left out, so that a model with one more optional
field gives the same bytes for an old log. A later version may derive a new field from old events.
`fields_of` then leaves it out: it gives the fields that were recorded.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Any

from pydantic import BaseModel

Fields = Mapping[str, Collection[str]]
"""The fields that count, by the name of their class; classes that are not named: all."""


def canonical_json(
    state: Any, *, left_out: Collection[str] = (), known: Fields | None = None
) -> bytes:
    """The facts of a state that is a dataclass; `left_out` are fields of the state itself."""
    content = {
        item.name: _plain(getattr(state, item.name), known or {})
        for item in _counting(state, known or {})
        if item.name not in left_out
    }
    full = {name: value for name, value in content.items() if value}
    return json.dumps(full, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def fields_of(value: Any) -> dict[str, list[str]]:
    """The fields of every dataclass and named tuple in a value: what `known` is later."""
    found: dict[str, list[str]] = {}
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if is_dataclass(item):
            found[type(item).__name__] = sorted(part.name for part in fields(item))
            waiting += [getattr(item, part.name) for part in fields(item)]
        elif isinstance(item, tuple) and hasattr(item, "_fields"):
            found[type(item).__name__] = sorted(item._fields)
            waiting += item
        elif isinstance(item, Mapping):
            waiting += item.values()
        elif isinstance(item, list | tuple | set | frozenset):
            waiting += item
    return dict(sorted(found.items()))


def _plain(value: Any, known: Fields) -> Any:  # noqa: PLR0911 - one return for each kind
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", exclude_defaults=True)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    if is_dataclass(value):
        return {
            item.name: _plain(held, known)
            for item in _counting(value, known)
            if (held := getattr(value, item.name)) != _default(item)
        }
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return _plain_tuple(value, known)
    if isinstance(value, Mapping):
        return {_name(key): _plain(held, known) for key, held in value.items()}
    if isinstance(value, frozenset | set):
        return sorted(_plain(item, known) for item in value)
    if isinstance(value, list | tuple):
        return [_plain(item, known) for item in value]
    return value


def _plain_tuple(value: Any, known: Fields) -> dict[str, Any]:
    """A named tuple, without the fields that are at their defaults."""
    names, defaults = known.get(type(value).__name__), value._field_defaults
    return {
        name: _plain(held, known)
        for name, held in value._asdict().items()
        if (names is None or name in names) and (name not in defaults or held != defaults[name])
    }


def _counting(value: Any, known: Fields) -> Iterator[Field[Any]]:
    names = known.get(type(value).__name__)
    return (item for item in fields(value) if names is None or item.name in names)


def _default(item: Field[Any]) -> Any:
    return item.default_factory() if item.default_factory is not MISSING else item.default


def _name(key: Any) -> str:
    return key if isinstance(key, str) else json.dumps(key)
