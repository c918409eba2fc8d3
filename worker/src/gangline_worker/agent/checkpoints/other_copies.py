"""A port: the copies of a checkpoint's files that other nodes have."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from gangline_schemas.events.workers import ObjectDigest


class OtherCopies(Protocol):
    """The copies of one checkpoint's files on other nodes. For one thread."""

    def find(self, wanted: Sequence[ObjectDigest]) -> list[ObjectDigest]:
        """Find out which nodes have these; they come in the order in which to `bring` them."""

    def bring(self, digest: ObjectDigest, put: Callable[[Iterator[bytes]], object]) -> str | None:
        """Let `put` write a file's bytes; the node that gave them, None: no other node has it.

        `put` must keep nothing when the iterator raises. Raises what `put` does.
        """
