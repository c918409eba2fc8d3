"""Which ranks' files of a checkpoint a node brings before its own ranks start."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gangline_schemas.checkpoint import RankManifest
from gangline_worker.checkpoint.nearest import holders, resumes_from, rows_of, whose


@dataclass(frozen=True, slots=True)
class Share:
    """A node's part of a gang of `world_size`."""

    ranks: range
    world_size: int

    def manifests_of(self, saved: int) -> list[int]:
        """Of the `saved` ranks that saved, those whose manifests name what this share needs.

        At another size also rank 0, which held a row of each tensor.
        """
        own = {resumes_from(rank, saved) for rank in self.ranks}
        if saved == self.world_size:
            return sorted(own)
        return sorted({0, *own, *whose(self.ranks, self.world_size, saved)})

    def needs(self, manifests: Iterable[RankManifest], saved: int) -> set[int] | None:
        """The ranks whose bytes this share holds now; None: perhaps all, as some lie with others.

        Right for FSDP. Where tensors were cut otherwise it is a guess, and ranks ask for the rest.
        """
        known = list(manifests)
        if not all(manifest.alone for manifest in known):
            return None
        if saved == self.world_size:
            return set(self.ranks)
        tensors = {
            piece.global_shape[0]
            for manifest in known
            for piece in manifest.tensors
            if piece.shape[:1] != piece.global_shape[:1]
        }
        needed = {
            rank
            for of in tensors
            for rank in holders(rows_of(self.ranks, of, self.world_size), of, saved)
        }
        return needed or set(whose(self.ranks, self.world_size, saved))
