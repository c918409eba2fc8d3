"""Slices of tensors in little memory: what all ranks' manifests say alike is kept once.

A manifest as it is decoded takes eight times its bytes. As pieces it takes less than its
bytes, so that the manifests of thousands of ranks can be compared.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from gangline_schemas.checkpoint import SliceKey, TensorSlice


@dataclass(frozen=True, slots=True)
class Piece:
    """A slice; see `TensorSlice`."""

    name: str
    dtype: str
    global_shape: tuple[int, ...]
    start: tuple[int, ...]
    shape: tuple[int, ...]
    size_bytes: int

    @property
    def key(self) -> SliceKey:
        """Equal for copies of one slice, wherever they lie."""
        return self.name, self.dtype, self.global_shape, self.start, self.shape


class Pieces:
    """Makes the pieces of one checkpoint. May be used by several threads."""

    def __init__(self) -> None:
        self._known: dict[Any, Any] = {}

    def of(self, tensors: Iterable[TensorSlice]) -> tuple[Piece, ...]:
        """These slices as pieces."""
        once = self._known.setdefault
        return tuple(
            Piece(
                once(item.name, item.name),
                once(item.dtype, item.dtype),
                once(item.global_shape, item.global_shape),
                once(item.start, item.start),
                once(item.shape, item.shape),
                item.size_bytes,
            )
            for item in tensors
        )
