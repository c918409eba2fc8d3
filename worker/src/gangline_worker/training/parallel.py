"""How the model is spread over ranks: FSDP2 or DDP; gloo on CPUs, NCCL on GPUs."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import timedelta
from typing import cast

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

from gangline_worker.training.config import TrainConfig
from gangline_worker.training.model import Transformer


@dataclass(frozen=True)
class World:
    """This rank's place. `control` is a gloo group apart, for agreements between steps."""

    rank: int
    size: int
    device: torch.device
    control: dist.ProcessGroup


def join_world(timeout_s: float) -> World:
    """Join the ranks that the environment names, as torchrun does; alone without RANK."""
    if "RANK" not in os.environ:
        os.environ.update(
            {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}
        )
        os.environ["MASTER_PORT"] = str(_free_port())
    if os.environ["MASTER_ADDR"] in {"127.0.0.1", "localhost"}:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # else it listens on the host's address
    timeout = timedelta(seconds=timeout_s)
    if torch.cuda.is_available():
        index = int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count()
        device = torch.device("cuda", index)
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", timeout=timeout, device_id=device)
    else:
        device = torch.device("cpu")
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
        dist.init_process_group("gloo", timeout=timeout)
    control = cast("dist.ProcessGroup", dist.new_group(backend="gloo", timeout=timeout))
    return World(dist.get_rank(), dist.get_world_size(), device, control)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def compute_dtype(config: TrainConfig, device: torch.device) -> torch.dtype:
    """In what the matrix work is done; bfloat16 is a hundred times slower on CPUs."""
    if config.dtype == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    return torch.bfloat16 if config.dtype == "bfloat16" else torch.float32


@dataclass(frozen=True)
class ParallelModel:
    """The model spread over ranks; `plain` has the parameters under their own names."""

    plain: Transformer
    module: nn.Module
    autocast_dtype: torch.dtype | None

    @contextlib.contextmanager
    def micro_step(self, *, last: bool) -> Iterator[None]:
        """Around forward and backward of one micro-batch: gradients are exchanged in the last."""
        quiet: AbstractContextManager[object] = contextlib.nullcontext()
        if isinstance(self.module, FSDPModule):
            self.module.set_requires_gradient_sync(last)
        elif isinstance(self.module, DistributedDataParallel) and not last:
            quiet = self.module.no_sync()
        cast: AbstractContextManager[object] = contextlib.nullcontext()
        if self.autocast_dtype is not None:
            cast = torch.autocast("cuda", self.autocast_dtype)
        with quiet, cast:
            yield


def spread(config: TrainConfig, world: World) -> ParallelModel:
    """Build the model on meta, spread it, and give it memory; its weights are not yet set."""
    dtype = compute_dtype(config, world.device)
    with torch.device("meta"):
        model = Transformer(config)
    if config.strategy == "ddp":
        model.to_empty(device=world.device)
        model.reset_buffers()
        wrapped = DistributedDataParallel(model, init_sync=False, gradient_as_bucket_view=True)
        mixed = dtype if dtype != torch.float32 and world.device.type == "cuda" else None
        return ParallelModel(model, wrapped, mixed)
    mesh = init_device_mesh(world.device.type, (world.size,))
    inner = outer = MixedPrecisionPolicy()
    if dtype != torch.float32:
        inner = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
        outer = MixedPrecisionPolicy(
            param_dtype=dtype, reduce_dtype=torch.float32, output_dtype=torch.float32
        )
    for layer in model.layers.values():
        fully_shard(layer, mesh=mesh, mp_policy=inner)
    fully_shard(model, mesh=mesh, mp_policy=outer)
    model.to_empty(device=world.device)
    model.reset_buffers()
    return ParallelModel(model, model, None)
