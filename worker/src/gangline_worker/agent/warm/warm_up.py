"""Imports and builds in advance what ranks would import and build lazily."""

from __future__ import annotations

import gc
import sys


def import_modules() -> None:
    """Import what a trainer imports; no GPU is touched."""
    gc.disable()  # a fifth of the time would go into collections that find nothing
    import torch
    import torch._dynamo  # by the first step of an optimizer
    import torch.distributed.fsdp

    import gangline_worker.training.trainer  # noqa: F401

    torch.set_num_threads(1)
    gc.freeze()
    gc.enable()


def take_a_step() -> None:
    """Have a tiny model take a step on the CPU: what is imported or built by that.

    torch asks CUDA's driver for GPUs when it makes a mesh and computes shapes, also where none is
    visible. An answer leaves a thread, which bars forks. So in this step it asks nothing.
    """
    from unittest.mock import patch

    asks_nothing = patch.multiple(
        "torch._C",
        create=True,
        _cuda_getDeviceCount=lambda: 0,
        _ensureCUDADeviceGuardSet=lambda: None,
    )
    with asks_nothing:
        _take_a_step()


def _take_a_step() -> None:
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    model = torch.nn.Linear(4, 4)
    # Its lazy imports. Its own mesh would be of the accelerator, for which it asks the driver.
    fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    dist.destroy_process_group()
    sys.excepthook = sys.__excepthook__  # the group set one
    plain = torch.nn.Linear(4, 4)
    for parameter in plain.parameters():
        parameter.grad = torch.zeros_like(parameter)
    torch.optim.AdamW(plain.parameters(), fused=True).step()


def settle() -> frozenset[str]:
    """The names of all top-level modules, when all is there that will be."""
    gc.collect()
    gc.freeze()  # a collection in a rank does not touch, and by that copy, these pages
    return frozenset(name.partition(".")[0] for name in sys.modules)
