"""Which block of a tensor a rank holds on a mesh of two dimensions, and what is not understood."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard
from torch.testing._internal.distributed.fake_pg import FakeStore

from gangline_worker.checkpoint.local import holdings

ROWS = 8


@pytest.fixture(params=range(4))
def mesh(request: pytest.FixtureRequest) -> Iterator[DeviceMesh]:
    """Two by two ranks, seen from each of them."""
    dist.init_process_group("fake", rank=request.param, world_size=4, store=FakeStore())
    yield init_device_mesh("cpu", (2, 2), mesh_dim_names=("shard", "tensor"))
    dist.destroy_process_group()


def placed(mesh: DeviceMesh, *placements: Placement, rows: int) -> DTensor:
    return DTensor.from_local(torch.zeros(rows, 3), mesh, placements, run_check=False)


@pytest.mark.parametrize(
    ("placements", "rows", "first_row_by_rank", "replicas"),
    [
        ((Shard(0), Shard(0)), 2, (0, 2, 4, 6), 1),
        ((_StridedShard(0, split_factor=2), Shard(0)), 2, (0, 4, 2, 6), 1),
        ((Shard(0), Replicate()), 4, (0, 0, 4, 4), 2),
        ((Replicate(), Shard(0)), 4, (0, 4, 0, 4), 2),
    ],
)
def test_each_rank_knows_its_rows(
    mesh: DeviceMesh,
    placements: tuple[Placement, ...],
    rows: int,
    first_row_by_rank: tuple[int, ...],
    replicas: int,
) -> None:
    found = holdings({"w": placed(mesh, *placements, rows=rows)}, 0, 1)["w"]
    assert found.block.global_shape == (ROWS, 3)
    assert found.block.start == (first_row_by_rank[dist.get_rank()], 0)
    assert (found.block.shape, found.replicas) == ((rows, 3), replicas)


@pytest.mark.parametrize(
    "placements",
    [(_StridedShard(0, split_factor=4), Shard(0)), (Replicate(), Partial())],
)
def test_other_placements_are_refused(mesh: DeviceMesh, placements: tuple[Placement, ...]) -> None:
    with pytest.raises(TypeError, match=r"^w: cannot save a tensor placed as"):
        holdings({"w": placed(mesh, *placements, rows=2)}, 0, 1)
