"""A dict of bounded size, which keeps its newest entries."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

KeyT = TypeVar("KeyT", bound=Hashable)
ValueT = TypeVar("ValueT")


class Recent(dict[KeyT, ValueT], Generic[KeyT, ValueT]):
    """A dict of at most `size` entries: a new key removes the one that was put longest ago."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self._size = size

    def put(self, key: KeyT, value: ValueT) -> None:
        """Sets a value."""
        self.pop(key, None)
        self[key] = value
        if len(self) > self._size:
            del self[next(iter(self))]
