"""A nested state as named tensors plus JSON, and back, so that nothing is ever pickled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from pydantic import JsonValue

_TENSOR, _ITEMS, _TUPLE = "$tensor", "$items", "$tuple"


def flatten(state: Any, prefix: str = "") -> tuple[dict[str, torch.Tensor], JsonValue]:
    """Split a state into its tensors, by dotted name, and the JSON of all else.

    Dicts (with keys of str, int or float), lists, tuples, numbers, strings, None and tensors.

    Raises:
        TypeError: anything else; the message names where it lies.
    """
    tensors: dict[str, torch.Tensor] = {}
    return tensors, _take_apart(state, prefix, tensors)


def _take_apart(value: Any, path: str, tensors: dict[str, torch.Tensor]) -> JsonValue:
    def below(key: object, child: Any) -> JsonValue:
        return _take_apart(child, f"{path}.{key}" if path else str(key), tensors)

    if isinstance(value, torch.Tensor):
        if path in tensors:
            raise TypeError(f"{path}: two tensors of the state have this name")
        tensors[path] = value
        return {_TENSOR: path}
    if isinstance(value, bool | int | float | str) or value is None:
        return value
    if isinstance(value, Mapping):
        if all(isinstance(key, str) and not key.startswith("$") for key in value):
            return {key: below(key, child) for key, child in value.items()}
        if all(isinstance(key, str | int | float) for key in value):
            return {_ITEMS: [[key, below(key, child)] for key, child in value.items()]}
    if isinstance(value, list):
        return [below(i, child) for i, child in enumerate(value)]
    if isinstance(value, tuple):
        return {_TUPLE: [below(i, child) for i, child in enumerate(value)]}
    raise TypeError(
        f"{path or 'state'}: cannot save a {type(value).__name__}; use tensors, numbers, strings, "
        "lists, tuples and dicts of them"
    )


def rebuild(skeleton: JsonValue, tensors: Mapping[str, torch.Tensor]) -> Any:
    """Undo `flatten`."""
    if isinstance(skeleton, list):
        return [rebuild(child, tensors) for child in skeleton]
    if not isinstance(skeleton, dict):
        return skeleton
    if _TENSOR in skeleton:
        return tensors[str(skeleton[_TENSOR])]
    if _TUPLE in skeleton:
        return tuple(rebuild(skeleton[_TUPLE], tensors))
    if _ITEMS in skeleton:
        pairs: Any = skeleton[_ITEMS]
        return {key: rebuild(child, tensors) for key, child in pairs}
    return {key: rebuild(child, tensors) for key, child in skeleton.items()}
