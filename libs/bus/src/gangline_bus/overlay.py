"""A dict on top of another one: it reads as a copy of that, and costs what is changed in it.

A decision changes a few of tens of thousands of jobs and nodes; copying them all cost more than
deciding. The dict below must stay as it is for as long as the overlay is used.
"""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, KeysView, ValuesView
from typing import Any, TypeVar

KeyT = TypeVar("KeyT")
ValueT = TypeVar("ValueT")
_NOTHING: Any = object()


class Overlay(dict[KeyT, ValueT]):
    """Holds the entries that were written. Its order is that of a copied dict.

    `_gone`: keys of the dict below that were deleted; `_new`: keys that were not there, or were
    deleted and set again, so they stand behind all others.
    """

    __slots__ = ("_below", "_gone", "_new")

    def __init__(self, below: dict[KeyT, ValueT]) -> None:
        super().__init__()
        self._below = below
        self._gone: set[KeyT] = set()
        self._new: dict[KeyT, None] = {}

    def copy(self) -> Overlay[KeyT, ValueT]:
        """Another one of the same dict, which changes by itself. O(changes)."""
        other: Overlay[KeyT, ValueT] = Overlay(self._below)
        dict.update(other, zip(dict.keys(self), dict.values(self), strict=True))
        other._gone = set(self._gone)
        other._new = dict(self._new)
        return other

    def __missing__(self, key: KeyT) -> ValueT:
        if key in self._gone:
            raise KeyError(key)
        return self._below[key]

    def get(self, key: KeyT, default: Any = None) -> Any:
        """The value, or the default."""
        if dict.__contains__(self, key):
            return self[key]
        return default if key in self._gone else self._below.get(key, default)

    def __contains__(self, key: object) -> bool:
        if dict.__contains__(self, key):
            return True
        return key in self._below and key not in self._gone

    def __len__(self) -> int:
        return len(self._below) - len(self._gone) + len(self._new)

    def __bool__(self) -> bool:
        return len(self) > 0

    def __iter__(self) -> Iterator[KeyT]:
        for key in self._below:
            if key not in self._gone:
                yield key
        yield from self._new

    def keys(self) -> KeysView[KeyT]:  # type: ignore[override]
        """Every key, in order."""
        return KeysView(self)

    def values(self) -> ValuesView[ValueT]:  # type: ignore[override]
        """Every value, in order of the keys."""
        return ValuesView(self)

    def items(self) -> ItemsView[KeyT, ValueT]:  # type: ignore[override]
        """Every entry, in order of the keys."""
        return ItemsView(self)

    def __setitem__(self, key: KeyT, value: ValueT) -> None:
        if key in self._gone or key not in self._below:
            self._new[key] = None
        super().__setitem__(key, value)

    def __delitem__(self, key: KeyT) -> None:
        if key not in self:
            raise KeyError(key)
        if key in self._new:
            del self._new[key]
        else:
            self._gone.add(key)
        if dict.__contains__(self, key):
            super().__delitem__(key)

    def pop(self, key: KeyT, default: Any = _NOTHING) -> Any:
        """Delete a key and give its value; the default when it is not there."""
        if key not in self:
            if default is _NOTHING:
                raise KeyError(key)
            return default
        value = self[key]
        del self[key]
        return value

    def clear(self) -> None:
        """Delete every key."""
        super().clear()
        self._gone = set(self._below)
        self._new.clear()

    def setdefault(self, key: KeyT, default: Any = None) -> Any:
        """The value; the default, which is set, when there is none."""
        if key not in self:
            self[key] = default
        return self[key]

    def update(self, *args: Any, **kwargs: Any) -> None:
        """Set every entry of these."""
        for key, value in dict(*args, **kwargs).items():
            self[key] = value

    def __eq__(self, other: object) -> bool:
        return dict(self.items()) == other

    __hash__ = None

    def __repr__(self) -> str:
        return repr(dict(self.items()))
