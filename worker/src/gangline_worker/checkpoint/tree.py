"""A nested state as named tensors plus JSON, and back, so that nothing is ever pickled.

JSON has no tuples, sets, infinities, bytes or keys other than strings: these are dicts of one
`$name`. Arrays and bytes are tensors to the files of a checkpoint.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from pydantic import JsonValue

from gangline_schemas.checkpoint import ITEM_BYTES, NAME_CHARS
from gangline_schemas.limits import JSON_DEPTH, is_torn
from gangline_worker.checkpoint.local import dtype_name

_TENSOR, _EMPTY, _ITEMS, _TUPLE, _FLOAT = "$tensor", "$empty", "$items", "$tuple", "$float"
_ARRAY, _BYTES = "$array", "$bytes"  # tensors, too
_SCALAR, _INT, _TEXT, _HEX, _SET, _FROZEN = "$scalar", "$int", "$text", "$hex", "$set", "$frozenset"
_LARGEST_INT = 2**63 - 1  # more is kept by few readers of JSON
_DEEPEST = JSON_DEPTH - 4  # brackets; one is around all, and three stand for an empty tensor
_KNOWN = (
    "use tensors, numpy arrays and numbers, numbers, strings, bytes, and dicts, lists, tuples and "
    "sets of them"
)


def flatten(state: Any, prefix: str = "") -> tuple[dict[str, torch.Tensor], JsonValue]:
    """Split a state into its tensors, by dotted name, and the JSON of all else.

    Taken are, and come back equal and of their type: tensors, numpy arrays and numbers of these
    dtypes, None, bool, int, float, str, bytes, list, tuple, dict, set, frozenset. Keys of dicts and
    items of sets are what Python hashes of these, without tensors and arrays. Other mappings come
    back as dict, subclasses of list, tuple, int, float and str as these.

    Raises:
        TypeError: anything else; the message names where it lies.
    """
    tensors: dict[str, torch.Tensor] = {}
    return tensors, _take_apart(state, prefix, tensors, 0)


def _take_apart(value: Any, path: str, tensors: dict[str, torch.Tensor], depth: int) -> JsonValue:
    def below(key: object, child: Any, brackets: int) -> JsonValue:
        place = f"{path}.{key}" if path else str(key)
        return _take_apart(child, place, tensors, depth + brackets)

    _check_depth(path, depth)
    kept = _tensor_of(path, value)
    if kept is not None:
        kind, tensor = kept
        if path in tensors:
            raise TypeError(f"{path}: two tensors of the state have this name")
        if len(path) > NAME_CHARS:
            raise TypeError(f"{path[:200]}...: the name of a tensor is above {NAME_CHARS} letters")
        if is_torn(path):
            raise TypeError(f"{path!r}: the name of a tensor must be Unicode text")
        tensors[path] = tensor
        dtype = dtype_name(path, tensor)
        return {kind: path} | ({} if tensor.numel() else {_EMPTY: [dtype, list(tensor.shape)]})
    if isinstance(value, Mapping):
        if all(type(key) is str and key[:1] != "$" and not is_torn(key) for key in value):
            return {key: below(key, child, 1) for key, child in value.items()}
        pairs = value.items()
        return {
            _ITEMS: [[_hashable(path, key, depth + 3), below(key, one, 3)] for key, one in pairs]
        }
    if isinstance(value, list):
        return [below(i, child, 1) for i, child in enumerate(value)]
    if isinstance(value, tuple):
        return {_TUPLE: [below(i, child, 2) for i, child in enumerate(value)]}
    return _hashable(path, value, depth)


def _check_depth(path: str, depth: int) -> None:
    if depth > _DEEPEST:
        raise TypeError(
            f"{path[:200]}: cannot save what is nested deeper than {_DEEPEST} levels; a tuple or a "
            "set counts twice, a dict whose keys are no text three times"
        )


def _tensor_of(path: str, value: Any) -> tuple[str, torch.Tensor] | None:
    """Its kind and the tensor that a file stores; None: it is not a tensor."""
    if isinstance(value, torch.Tensor):
        return _TENSOR, value
    if type(value) is bytes:
        return _BYTES, torch.frombuffer(bytearray(value), dtype=torch.uint8) if value else _NOTHING
    if type(value) is np.ndarray:
        _check(path, value.dtype)
        # A copy is writable and contiguous, which torch wants of memory that it shares.
        return _ARRAY, torch.from_numpy(value.copy(order="C"))
    return None


_NOTHING = torch.empty(0, dtype=torch.uint8)


def _check(path: str, dtype: np.dtype[Any]) -> None:
    """Raises TypeError for a dtype that torch has not, or of another order of bytes."""
    if dtype.kind not in "biufc" or dtype.name not in ITEM_BYTES or not dtype.isnative:
        known = ", ".join(ITEM_BYTES)
        raise TypeError(f"{path}: cannot save numpy's {dtype.str}; make it one of {known}")


def _hashable(path: str, value: Any, depth: int) -> JsonValue:  # noqa: PLR0911 -- one case for each type
    """The JSON of what may be a key of a dict or an item of a set."""
    _check_depth(path, depth)
    if isinstance(value, enum.Enum):
        raise TypeError(f"{path or 'state'}: cannot save {value!r}; save its value")
    if isinstance(value, np.generic):
        _check(path, value.dtype)
        return {_SCALAR: [value.dtype.name, value.tobytes().hex()]}
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        return int(value) if abs(value) <= _LARGEST_INT else {_INT: hex(value)}
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {_FLOAT: repr(float(value))}
    if isinstance(value, str):
        return str(value) if not is_torn(value) else {_TEXT: value.encode(*_ANY_TEXT).hex()}
    if isinstance(value, bytes):
        return {_HEX: value.hex()}
    if isinstance(value, tuple):
        return {_TUPLE: [_hashable(path, item, depth + 2) for item in value]}
    if isinstance(value, set | frozenset):
        items = sorted((_hashable(path, item, depth + 2) for item in value), key=repr)
        return {_SET if isinstance(value, set) else _FROZEN: items}
    raise TypeError(f"{path or 'state'}: cannot save a {type(value).__name__}; {_KNOWN}")


_ANY_TEXT = ("utf-8", "surrogatepass")


def rebuild(skeleton: JsonValue, tensors: Mapping[str, torch.Tensor]) -> Any:
    """Undo `flatten`."""
    if isinstance(skeleton, list):
        return [rebuild(child, tensors) for child in skeleton]
    return _from_dict(skeleton, tensors) if isinstance(skeleton, dict) else skeleton


def tensor_names(skeleton: JsonValue) -> set[str]:
    """The tensors that `rebuild` needs, those of arrays and bytes too."""
    return {name for name, kept in _walk(skeleton) if _EMPTY not in kept}


def empty_ones(skeleton: JsonValue) -> dict[str, JsonValue]:
    """The dtype and the shape of each tensor without elements, which lies in no file."""
    return {name: kept[_EMPTY] for name, kept in _walk(skeleton) if _EMPTY in kept}


def in_place(skeleton: JsonValue) -> set[str]:
    """The names of what was a tensor in the state, and so is the same memory there and here."""
    return {name for name, kept in _walk(skeleton) if _TENSOR in kept}


def _walk(skeleton: JsonValue) -> Iterator[tuple[str, dict[str, JsonValue]]]:
    """The name of each tensor, and what stands for it."""
    if isinstance(skeleton, dict) and (name := _named(skeleton)) is not None:
        yield name, skeleton
    elif isinstance(skeleton, dict):
        for child in skeleton.values():
            yield from _walk(child)
    elif isinstance(skeleton, list):
        for child in skeleton:
            yield from _walk(child)


def _named(skeleton: dict[str, JsonValue]) -> str | None:
    """The tensor that stands here, if one does."""
    kind = next((kind for kind in (_TENSOR, _ARRAY, _BYTES) if kind in skeleton), None)
    return None if kind is None else str(skeleton[kind])


def _from_dict(skeleton: dict[str, JsonValue], tensors: Mapping[str, torch.Tensor]) -> Any:
    if _named(skeleton) is not None:
        return _from_file(skeleton, tensors)
    kind, given = next(iter(skeleton.items()), ("", None))
    if kind == _ITEMS:
        pairs: Any = given
        return {rebuild(key, tensors): rebuild(child, tensors) for key, child in pairs}
    if kind in _GROUPS:
        return _GROUPS[kind](rebuild(given, tensors))
    if kind in _SCALARS:
        return _SCALARS[kind](given)
    return {key: rebuild(child, tensors) for key, child in skeleton.items()}


_GROUPS: dict[str, Callable[[list[Any]], Any]] = {_TUPLE: tuple, _SET: set, _FROZEN: frozenset}
_SCALARS: dict[str, Callable[[Any], Any]] = {
    _FLOAT: float,
    _INT: lambda given: int(given, 16),
    _TEXT: lambda given: bytes.fromhex(given).decode(*_ANY_TEXT),
    _HEX: bytes.fromhex,
    _SCALAR: lambda given: np.frombuffer(bytes.fromhex(given[1]), dtype=given[0])[0],
}


def _from_file(skeleton: dict[str, JsonValue], tensors: Mapping[str, torch.Tensor]) -> Any:
    """A tensor, or what was made one: an array, bytes."""
    tensor = _tensor(str(_named(skeleton)), skeleton.get(_EMPTY), tensors)
    if _TENSOR in skeleton:
        return tensor
    return tensor.numpy() if _ARRAY in skeleton else tensor.numpy().tobytes()


def _tensor(name: str, empty: Any, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """The tensor of this name; where there is none, an empty one: [dtype, shape]."""
    if empty is None or name in tensors:
        return tensors[name]
    dtype, shape = empty
    return torch.empty(shape, dtype=getattr(torch, dtype))
