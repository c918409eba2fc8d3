"""Blocks that are verified before they are used, and those that stay damaged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gangline_worker.data.errors import DataShardError
from gangline_worker.data.source import Source


class DamagedBlock(Exception):
    """The wanted bytes touch a block that is left out."""


@dataclass(frozen=True)
class LeftOut:
    """A block of a snapshot that stayed damaged when it was read again; it is reported once."""

    snapshot: str
    shard: str
    block: int
    reason: str

    def __str__(self) -> str:
        """One line for people."""
        return (
            f"data: {self.shard} block {self.block} of {self.snapshot} is left out: {self.reason}"
        )


Complain = Callable[[LeftOut], None]


class VerifiedBlocks:
    """The blocks of a source. One thread at a time.

    `quarantined` are those that stayed damaged, counted over all shards, with what is wrong; with
    more than `max_damaged` of them the data is given up.
    """

    def __init__(self, source: Source, *, max_damaged: int, complain: Complain) -> None:
        self.source = source
        self.quarantined: dict[int, str] = {}
        self._max_damaged, self._complain = max_damaged, complain

    def make_right(self, first: int, last: int) -> None:
        """Make the blocks from `first` to `last` of one shard right and verified.

        Raises:
            DamagedBlock: one of them is quarantined.
            DataShardError: too many blocks are damaged, or a shard cannot be opened.
            DataError, StoreError: the cache cannot be written; the store does not answer.
        """
        verified = self.source.verified[first : last + 1]
        while not verified.all():  # making one right may have cost others their place
            self._make_right(first + int(verified.argmin()))

    def hopeless(self, tries: int) -> DataShardError:
        """The error when so many samples in a row touch quarantined blocks."""
        block, wrong = next(iter(self.quarantined.items()))
        shard, within = self.source.place(block)
        name = self.source.manifest.shards[shard].name
        return DataShardError(
            name, within, f"{wrong}; {tries} other samples in a row are damaged too"
        )

    def counts(self, replaced: int) -> dict[str, float]:
        """Metrics of what was found wrong so far; empty when nothing was."""
        found = {
            "data_damaged_blocks": float(len(self.quarantined)),
            "data_replaced_samples": float(replaced),
            "data_refetched_blocks": float(self.source.refetched),
        }
        return {name: value for name, value in found.items() if value}

    def _make_right(self, block: int) -> None:
        if block in self.quarantined:
            raise DamagedBlock
        wrong = self.source.ensure(block)
        if wrong is None:
            return
        self.quarantined[block] = wrong
        shard, within = self.source.place(block)
        manifest = self.source.manifest
        name = manifest.shards[shard].name
        if len(self.quarantined) > self._max_damaged:
            raise DataShardError(
                name,
                within,
                f"{wrong}; with {len(self.quarantined)} damaged blocks of {manifest.name} "
                f"this is more than data_max_damaged_blocks ({self._max_damaged})",
            )
        self._complain(LeftOut(manifest.name, name, within, wrong))
        raise DamagedBlock
