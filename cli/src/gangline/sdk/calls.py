"""Calls of one gateway, and their answers as values."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import islice
from typing import Any, Self, TypeVar

from gangline.sdk.answers import read
from gangline.transport import Params, Transport

PAGE = 100
AnswerT = TypeVar("AnswerT")


class Calls:
    """A connection to one gateway. Use it as a context manager, or call `close`."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def __enter__(self) -> Self:
        """Nothing is sent before the first question."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the connections."""
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._transport.close()

    @property
    def url(self) -> str:
        """The gateway's URL."""
        return self._transport.url

    def _pages(
        self, kind: type[AnswerT], path: str, items: str, limit: int | None, params: Params
    ) -> Iterator[AnswerT]:
        """The pages of a route, one at least, until there are `limit` `items` (None: all)."""
        cursor, left = None, limit
        while True:
            size = PAGE if left is None else max(1, min(PAGE, left))
            place = {**params, "limit": size, "cursor": cursor}
            page: Any = self._read(kind, "GET", path, params=place)
            yield page
            count, cursor = len(getattr(page, items)), page.cursor
            left = None if left is None else left - count
            if cursor is None or not count or (left is not None and left <= 0):
                return

    def _items(
        self, kind: type[Any], path: str, items: str, limit: int | None = None, /, **params: Any
    ) -> Iterator[Any]:
        """The `items` of a route, read page by page; at most `limit`."""
        pages = self._pages(kind, path, items, limit, params)
        limit = None if limit is None else min(limit, sys.maxsize)  # more means no limit
        return islice((item for page in pages for item in getattr(page, items)), limit)

    def _whole(
        self, kind: type[AnswerT], path: str, items: str, limit: int | None = None, **params: Any
    ) -> AnswerT:
        """The first page of a route with the `items` of all pages, or the first `limit`."""
        pages: list[Any] = [*self._pages(kind, path, items, limit, params)]
        found = [item for page in pages for item in getattr(page, items)][:limit]
        first: AnswerT = pages[0].model_copy(update={items: found, "cursor": None})
        return first

    def _read(self, kind: type[AnswerT], method: str, path: str, **options: Any) -> AnswerT:
        return read(kind, self._transport.call(method, path, **options))
