"""Where each block of a save goes in the memory that it is copied to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch.distributed.tensor import DTensor

from gangline_schemas.checkpoint import TensorSlice
from gangline_worker.checkpoint import chunks
from gangline_worker.checkpoint.gpu_copy import on_gpus
from gangline_worker.checkpoint.layout import lay_out
from gangline_worker.checkpoint.local import Fingerprint, fingerprint, holdings
from gangline_worker.checkpoint.staging import staging

GROUP_BYTES = 4 << 20  # copied at least before they are hashed: the CPU's cache still has them


@dataclass(frozen=True)
class Plan:
    """It holds as long as the state is made of the same tensors."""

    key: Fingerprint
    region: torch.Tensor  # of at least `size_bytes`; the next plan may use it too
    slices: tuple[TensorSlice, ...]
    size_bytes: int
    alone: bool  # nothing that this rank held lies with another
    sources: list[torch.Tensor]
    staged: list[torch.Tensor]
    groups: tuple[tuple[slice, int], ...]
    spans: tuple[chunks.Span, ...]
    padding: list[torch.Tensor]
    alike: dict[str, torch.Tensor]  # what all ranks are to hold alike


class Planner:
    """Plans one rank's saves, in chunks if they are to be `cut`. Keeps the memory for them."""

    def __init__(self, rank: int, world_size: int, *, cut: bool) -> None:
        self._rank, self._world_size = rank, world_size
        self._cut = cut
        self._region = torch.empty(0, dtype=torch.uint8)
        self._plan: Plan | None = None

    def plan(self, tensors: Mapping[str, torch.Tensor]) -> Plan:
        """The plan for these; the last one, if they lie in the same places."""
        key = fingerprint(tensors)
        if self._plan is not None and self._plan.key == key:
            return self._plan
        by_name = holdings(tensors, self._rank, self._world_size)
        alike = {
            name: one.data
            for name, one in by_name.items()
            if one.replicas > 1 and not isinstance(tensors[name], DTensor)
        }
        held = by_name.values()
        parts = [one.owned() for one in held]
        alone = all(one.block == block for one, (block, _) in zip(held, parts, strict=True))
        slices, size = lay_out(block for block, _ in parts)
        sources = [data for block, data in parts if block.size_bytes]
        pinned = bool(on_gpus(sources))
        if self._region.numel() < size or (pinned and not self._region.is_pinned()):
            self._region = staging(size, pinned=pinned)
        region = self._region
        staged = [
            region[s.byte_offset : s.byte_offset + s.size_bytes]
            .view(source.dtype)
            .view(source.shape)
            for s, source in zip(slices, sources, strict=True)
        ]
        groups = tuple(_groups(slices))
        spans = chunks.cut(slices, size) if self._cut else ()
        gaps = [region[a:b] for a, b in chunks.padding(slices)] if self._cut else []
        self._plan = Plan(
            key, region, slices, size, alone, sources, staged, groups, spans, gaps, alike
        )
        return self._plan

    def release_tensors(self) -> None:
        """Keep no tensor of the last plan."""
        if self._plan is not None:
            self._plan.sources.clear()
            self._plan.alike.clear()
            self._plan = None


def _groups(slices: Sequence[TensorSlice]) -> Iterator[tuple[slice, int]]:
    """Neighbours that are copied at once, and where the last of them ends."""
    first = start = 0
    for index, piece in enumerate(slices, 1):
        end = piece.byte_offset + piece.size_bytes
        if end - start >= GROUP_BYTES or index == len(slices):
            yield slice(first, index), end
            first, start = index, end
