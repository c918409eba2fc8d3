"""Which block of a tensor this rank holds, and which of it the rank writes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard

from gangline_schemas.checkpoint import ITEM_BYTES
from gangline_worker.checkpoint.layout import Block, owned


class Held(NamedTuple):
    """A tensor's local data and where it lies in the whole; `replicas` ranks hold the same."""

    block: Block
    data: torch.Tensor
    replica: int
    replicas: int

    def owned(self) -> tuple[Block, torch.Tensor]:
        """The part that this rank writes (it may be empty)."""
        part = owned(self.block, self.replica, self.replicas)
        if part == self.block:
            return part, self.data
        first = part.start[0] - self.block.start[0]
        return part, self.data[first : first + part.shape[0]]


PER_RANK = "$per_rank"


def own_prefix(rank: int) -> str:
    """The prefix of names of this rank's own tensors: no other rank has one of that name."""
    return f"{PER_RANK}.{rank}"


_DTYPES = {getattr(torch, name): name for name in ITEM_BYTES}


def dtype_name(name: str, tensor: torch.Tensor) -> str:
    """The tensor's dtype as manifests name it.

    Raises:
        TypeError: checkpoints do not hold such tensors; the message has the tensor's name.
    """
    if tensor.layout is not torch.strided or tensor.is_meta or tensor.is_nested:
        kind = "meta" if tensor.is_meta else "nested" if tensor.is_nested else tensor.layout
        raise TypeError(f"{name}: cannot save a tensor without plain memory ({kind})")
    dtype = _DTYPES.get(tensor.dtype)
    if dtype is None:
        known, found = ", ".join(ITEM_BYTES), str(tensor.dtype).removeprefix("torch.")
        raise TypeError(f"{name}: cannot save dtype {found}; view it as one of {known}")
    return dtype


@dataclass(frozen=True)
class _Cut:
    """Which part of a tensor a rank holds, and which of how many equal copies of that part."""

    start: tuple[int, ...]
    shape: tuple[int, ...]
    replica: int
    replicas: int


def _cut(name: str, tensor: DTensor) -> _Cut:
    shape, mesh = tuple(tensor.shape), tensor.device_mesh
    start, local = [0] * len(shape), list(shape)
    replica, replicas = 0, 1
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        raise TypeError(f"{name}: this rank is not part of the tensor's device mesh")
    cuts = list(zip(coordinate, mesh.shape, tensor.placements, strict=True))
    # FSDP2 cuts what tensor parallelism, a later dimension of the mesh, has cut before.
    cuts.sort(key=lambda cut: isinstance(cut[2], _StridedShard))
    pieces = [1] * len(shape)
    for index, size, placement in cuts:
        if isinstance(placement, _StridedShard) and placement.split_factor != pieces[placement.dim]:
            raise TypeError(f"{name}: cannot save a tensor placed as {placement}")
        if isinstance(placement, Shard | _StridedShard):
            pieces[placement.dim] *= size
            rows = -(-local[placement.dim] // size)
            first = min(local[placement.dim], index * rows)
            count = min(local[placement.dim], first + rows) - first
            start[placement.dim] += first
            local[placement.dim] = count
        elif type(placement) is Replicate:
            replica, replicas = replica * size + index, replicas * size
        else:
            raise TypeError(f"{name}: cannot save a tensor placed as {placement}")
    return _Cut(tuple(start), tuple(local), replica, replicas)


@torch.no_grad()  # else each local part costs a node of autograd's graph
def holdings(tensors: Mapping[str, torch.Tensor], rank: int, world_size: int) -> dict[str, Held]:
    """This rank's part of each tensor, by name: a DTensor's shard, or a plain one as a replica.

    A rank's own tensors (`own_prefix`) have no replicas.

    Raises:
        TypeError: a placement other than Shard, Replicate, or that of FSDP2 over tensor
            parallelism; or an unknown dtype.
    """
    cuts: dict[object, _Cut] = {}  # tensors of one model are of few kinds
    found = {}
    for name, tensor in tensors.items():
        dtype, shape = dtype_name(name, tensor), tuple(tensor.shape)
        if isinstance(tensor, DTensor):
            kind = shape, tensor.placements, tensor.device_mesh
            cut = cuts.get(kind) or cuts.setdefault(kind, _cut(name, tensor))
            local = tensor.to_local()
        else:
            replica = (0, 1) if name.startswith(f"{PER_RANK}.") else (rank, world_size)
            cut, local = _Cut((0,) * len(shape), shape, *replica), tensor
        if tuple(local.shape) != cut.shape:
            raise TypeError(
                f"{name}: its local shape is {tuple(local.shape)}, expected {cut.shape}"
            )
        block = Block(name, dtype, shape, cut.start, cut.shape)
        data = local.detach() if local.requires_grad else local
        found[name] = Held(block, data, cut.replica, cut.replicas)
    return found


Fingerprint = tuple[tuple[object, ...], ...]


@torch.no_grad()
def fingerprint(tensors: Mapping[str, torch.Tensor]) -> Fingerprint:
    """Equal for two sets of tensors exactly if what this rank holds lies in the same places.

    So a plan made for one set is right for the other, also when the Python objects are others, as
    those of two calls of `state_dict()`.
    """
    return tuple(
        (
            name,
            tensor.shape,
            tensor.dtype,
            *(
                (_place(tensor.to_local()), tensor.placements)
                if isinstance(tensor, DTensor)
                else (_place(tensor), None)
            ),
        )
        for name, tensor in tensors.items()
    )


def _place(local: torch.Tensor) -> tuple[object, ...]:
    return local.device, local.data_ptr(), local.shape, local.stride()
