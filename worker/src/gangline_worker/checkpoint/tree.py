"""A nested state as named tensors plus JSON, and back, so that nothing is ever pickled."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from pydantic import JsonValue

from gangline_worker.checkpoint.local import dtype_name

_TENSOR, _EMPTY, _ITEMS, _TUPLE, _FLOAT = "$tensor", "$empty", "$items", "$tuple", "$float"


def flatten(state: Any, prefix: str = "") -> tuple[dict[str, torch.Tensor], JsonValue]:
    """Split a state into its tensors, by dotted name, and the JSON of all else.

    Dicts (with keys of str, int or float), lists, tuples, numbers, strings, None and tensors.
    What neither JSON nor files of tensors have is told apart: infinities, NaN, empty tensors.

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
        dtype = dtype_name(path, value)
        return {_TENSOR: path} | ({} if value.numel() else {_EMPTY: [dtype, list(value.shape)]})
    if isinstance(value, bool | int | float | str) or value is None:
        return _number(value)
    if isinstance(value, Mapping):
        if all(isinstance(key, str) and not key.startswith("$") for key in value):
            return {key: below(key, child) for key, child in value.items()}
        if all(isinstance(key, str | int | float) for key in value):
            return {_ITEMS: [[_number(key), below(key, child)] for key, child in value.items()]}
    if isinstance(value, list):
        return [below(i, child) for i, child in enumerate(value)]
    if isinstance(value, tuple):
        return {_TUPLE: [below(i, child) for i, child in enumerate(value)]}
    raise TypeError(
        f"{path or 'state'}: cannot save a {type(value).__name__}; use tensors, numbers, strings, "
        "lists, tuples and dicts of them"
    )


def _number(value: float | str | None) -> JsonValue:
    if isinstance(value, float) and not math.isfinite(value):
        return {_FLOAT: repr(float(value))}
    return value


def rebuild(skeleton: JsonValue, tensors: Mapping[str, torch.Tensor]) -> Any:
    """Undo `flatten`."""
    if isinstance(skeleton, list):
        return [rebuild(child, tensors) for child in skeleton]
    return _from_dict(skeleton, tensors) if isinstance(skeleton, dict) else skeleton


def tensor_names(skeleton: JsonValue) -> set[str]:
    """The tensors that `rebuild` needs."""
    if isinstance(skeleton, dict):
        if _TENSOR in skeleton:
            return set() if _EMPTY in skeleton else {str(skeleton[_TENSOR])}
        return set().union(*map(tensor_names, skeleton.values()))
    return set().union(*map(tensor_names, skeleton)) if isinstance(skeleton, list) else set()


def _from_dict(skeleton: dict[str, JsonValue], tensors: Mapping[str, torch.Tensor]) -> Any:
    if _TENSOR in skeleton:
        return _tensor(str(skeleton[_TENSOR]), skeleton.get(_EMPTY), tensors)
    if _FLOAT in skeleton:
        return float(str(skeleton[_FLOAT]))
    if _TUPLE in skeleton:
        return tuple(rebuild(skeleton[_TUPLE], tensors))
    if _ITEMS in skeleton:
        pairs: Any = skeleton[_ITEMS]
        return {rebuild(key, tensors): rebuild(child, tensors) for key, child in pairs}
    return {key: rebuild(child, tensors) for key, child in skeleton.items()}


def _tensor(name: str, empty: Any, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """The tensor of this name; where there is none, an empty one: [dtype, shape]."""
    if empty is None or name in tensors:
        return tensors[name]
    dtype, shape = empty
    return torch.empty(shape, dtype=getattr(torch, dtype))
