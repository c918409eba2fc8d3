"""Calls of one gateway, and their answers as values."""

from __future__ import annotations

from typing import Any, Self, TypeVar

from gangline.sdk.answers import read
from gangline.transport import Transport

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

    def _read(self, kind: type[AnswerT], method: str, path: str, **options: Any) -> AnswerT:
        return read(kind, self._transport.call(method, path, **options))
