"""Black out credentials in anything that is about to be logged."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from pydantic import BaseModel

from gangline_schemas.secrets import REDACTED, is_secret_name, redact

_MAX_DEPTH = 8
_WORD_EDGE = re.compile(r"[^A-Za-z0-9]+|(?<=[a-z0-9])(?=[A-Z])")
# Names are matched whole (possessive, no start inside a name): linear on any text.
_ASSIGNMENT = re.compile(
    r"(?<![\w.-])(?P<name>[\w.-]++)(?P<between>['\"]?\s?[=:]\s?)"
    r"(?P<value>\"[^\"]*\"|'[^']*'|[^\s'\",&;}]+)"
)
_OPTION = re.compile(r"(?<![\w.-])(?P<name>--[\w-]++)(?P<between>\s+)(?P<value>[^\s-]\S*)")
_AUTHORIZATION = re.compile(r"\b(?P<scheme>bearer|basic)\s+[A-Za-z0-9._~+/=-]{8,}", re.IGNORECASE)


def is_secret_key(key: str) -> bool:
    """Whether a value of this name is a credential; `sasl.password` and `apiToken` are too."""
    return is_secret_name(_WORD_EDGE.sub("_", key))


def redact_text(text: str, known: Iterable[str] = ()) -> str:
    """`text` without known secrets, credential formats, HTTP credentials and NAME=secret pairs."""
    text = redact(text, known)
    text = _AUTHORIZATION.sub(lambda found: f"{found['scheme']} {REDACTED}", text)
    text = _OPTION.sub(_blacken, text)
    return _ASSIGNMENT.sub(_blacken, text)


def _blacken(found: re.Match[str]) -> str:
    if not is_secret_key(found["name"]):
        return found[0]
    return f"{found['name']}{found['between']}{REDACTED}"


def redact_mapping(
    mapping: Mapping[Any, object], known: Iterable[str] = (), depth: int = 0
) -> dict[str, object]:
    """`mapping` with its keys and values redacted as `redact_value` does."""
    return {
        redact_text(str(key), known): REDACTED
        if is_secret_key(str(key)) and item is not None
        else redact_value(item, known, depth + 1)
        for key, item in mapping.items()
    }


def redact_value(value: object, known: Iterable[str] = (), depth: int = 0) -> object:
    """`value` as plain JSON types with every string in it redacted.

    A value under a secret-looking key is blacked out whole. Models and dataclasses become mappings,
    unknown objects their redacted `repr`; deeper than 8 levels only "..." remains.
    """
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return redact_text(value, known)
    if depth >= _MAX_DEPTH:
        return "..."
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="python")
    elif is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in fields(value) if field.repr}
    if isinstance(value, Mapping):
        return redact_mapping(value, known, depth)
    if isinstance(value, list | tuple | set | frozenset):
        return [redact_value(item, known, depth + 1) for item in value]
    return redact_text(repr(value), known)
