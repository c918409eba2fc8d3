"""Errors of data, by the kinds that a caller or the fault manager treats differently."""

from __future__ import annotations

EXIT_DATA_SHARD = 66
"""The exit code of a process that ends by a DataShardError (sysexits.h: EX_NOINPUT)."""


class DataError(ValueError):
    """The data cannot be used as given; the message says the way out."""


class DataShardError(Exception):
    """Bytes of a snapshot are not what its manifest says, wherever they were read from.

    `shard` is the shard's file name; `block` counts its blocks from 0, None for the whole shard.
    """

    def __init__(self, shard: str, block: int | None, reason: str) -> None:
        """Name the place and what is wrong there."""
        place = shard if block is None else f"{shard} block {block}"
        super().__init__(f"data: shard {place} is corrupt: {reason}")
        self.shard = shard
        self.block = block
        self.reason = reason
