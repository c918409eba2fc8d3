"""Values that a run can log: metrics as numbers, parameters and tags as texts. Pure.

The limits are MLflow's, so that what is accepted here is not refused later by the server.
"""

from __future__ import annotations

import operator
import posixpath
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, SupportsFloat, SupportsIndex

from gangline.tracking.device import OnDevice, on_device

NAME_CHARS: Final = 250
PARAM_CHARS: Final = 6000
TAG_CHARS: Final = 8000
PLATFORM: Final = "gangline."
STEP_MAX: Final = 2**53 - 1
MOST_LEVELS: Final = 16
_NAME: Final = re.compile(r"[/\w.\- :]+")
_NAMES_KEPT: Final = 100_000
_SHOWN_CHARS: Final = 60

Point = tuple[str, float | OnDevice]


def points_of(metrics: Mapping[str, Any], known: set[str]) -> list[Point]:
    """The numbers of a mapping, nested ones by `outer/inner`; `known`: names found good before.

    Raises TypeError for a value that is not one number, ValueError for a name that no metric can
    have; both name the key.
    """
    _check_names("metrics", metrics)
    found: list[Point] = []
    for name, value in metrics.items():
        if (type(value) is float or type(value) is int) and name in known:
            found.append((name, _float(name, value)))
        else:
            found += _points(name, value, known)
    return found


def _check_names(what: str, given: object) -> None:
    if not isinstance(given, Mapping):
        kind = type(given).__name__
        raise TypeError(f"{what}: a {kind} has no names; give a mapping such as {{'name': 1}}")


def _points(name: str, value: Any, known: set[str]) -> Iterator[Point]:
    for full, inner in _flat(name, value):
        if full not in known:
            check_name(full)
            if len(known) >= _NAMES_KEPT:
                known.clear()
            known.add(full)
        yield full, _number(full, inner)


def params_of(values: Mapping[str, Any]) -> dict[str, str]:
    """Parameters as texts, nested ones by `outer/inner`. Raises TypeError or ValueError."""
    found: dict[str, str] = {}
    for name, value in values.items():
        for full, inner in _flat(name, value):
            check_name(full)
            text = text_of(full, inner, PARAM_CHARS)
            if found.setdefault(full, text) != text:
                raise ValueError(
                    f"{_key(full)}: two values, {_shown(found[full])} and {_shown(text)}"
                )
    return found


def tags_of(tags: Mapping[str, Any]) -> dict[str, str]:
    """Tags as texts. Raises TypeError or ValueError."""
    _check_names("tags", tags)
    for name in tags:
        check_name(name)
        if name.startswith(PLATFORM):
            raise ValueError(f"{_key(name)}: tags that begin with {PLATFORM} are the platform's")
    return {name: text_of(name, value, TAG_CHARS) for name, value in tags.items()}


def text_of(name: str, value: Any, most: int) -> str:
    """A value as text. Raises ValueError if it is longer than `most` characters."""
    text = storable(str(value))
    if len(text) > most:
        raise ValueError(
            f"{_key(name)}: {len(text):,} characters, at most {most:,} can be kept; "
            "log a long text as an artifact"
        )
    return text


def storable(text: str) -> str:
    """A text that JSON and databases keep: a file's name may have other bytes than UTF-8's."""
    return text.encode("utf-8", "replace").decode().replace("\0", "?")


def check_name(name: object) -> None:
    """Raise TypeError or ValueError unless MLflow accepts this name."""
    if not isinstance(name, str):
        raise TypeError(f"{_key(name)}: a name must be text, this is {type(name).__name__}")
    if len(name) > NAME_CHARS:
        raise ValueError(
            f"{_key(name)}: a name of {len(name):,} characters, at most {NAME_CHARS} are allowed"
        )
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"{_key(name)}: a name may hold letters, digits, spaces and _ - . : / only"
        )
    if posixpath.normpath(name) != name or name == "." or name.startswith(("..", "/")):
        raise ValueError(f"{_key(name)}: a name must not begin or end with /, nor hold // or ..")


def step_of(step: SupportsIndex) -> int:
    """A step as a whole number from 0 on. Raises TypeError or ValueError."""
    try:
        found = operator.index(step)
    except TypeError:
        raise TypeError(f"step: {_shown(step)} is not a whole number") from None
    if not 0 <= found <= STEP_MAX:
        raise ValueError(f"step: {_shown(step)} is not between 0 and 2**53 - 1")
    return found


def _flat(name: Any, value: Any, level: int = 0) -> Iterator[tuple[str, Any]]:
    if not isinstance(value, Mapping):
        yield name, value
        return
    check_name(name)
    if level >= MOST_LEVELS:
        raise ValueError(f"{_key(name)}: more than {MOST_LEVELS} levels of nesting")
    for inner, found in value.items():
        check_name(inner)
        yield from _flat(f"{name}/{inner}", found, level + 1)


def _number(name: str, value: Any) -> float | OnDevice:
    if isinstance(value, str | bytes | bytearray):
        raise TypeError(
            f"{_key(name)}: {_shown(value)} is text, a metric is a number; "
            "keep text in run.config or by run.set_tags"
        )
    if value is None:
        raise TypeError(f"{_key(name)}: None is not a number")
    size = getattr(value, "size", 1)  # numpy's is a number, torch's a method
    count = value.numel() if callable(getattr(value, "numel", None)) else size
    if isinstance(count, int) and count != 1:
        raise TypeError(f"{_key(name)}: {count:,} values; log one number, such as their mean")
    if getattr(value, "is_cuda", False):
        return on_device(value)
    return _float(name, value.item() if callable(getattr(value, "item", None)) else value)


def _float(name: str, value: SupportsFloat) -> float:
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"{_key(name)}: the number is too large for a float") from None
    except (TypeError, ValueError):
        raise TypeError(f"{_key(name)}: a {type(value).__name__} is not one number") from None


def _shown(value: object) -> str:
    """A value as messages have it, cut where it is long."""
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}..."


def _key(name: object) -> str:
    """A name as messages have it: as it is, or quoted where that would be unclear."""
    plain = isinstance(name, str) and len(name) <= _SHOWN_CHARS and _NAME.fullmatch(name)
    return str(name) if plain else _shown(name)
