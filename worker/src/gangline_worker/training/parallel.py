"""How the model is spread over ranks.

Copies on every rank are DDP. All else is FSDP2, over one rank if need be, so that mixed precision
and the names and kinds of parameters are the same everywhere:

1. a stage of the model is built on meta;
2. tensor parallelism shares out its matrices;
3. FSDP2 shards what is left, layer by layer (experts apart, on a mesh of their own);
4. memory is given; the stages are joined by a pipeline.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from gangline_schemas.parallel import Shape
from gangline_worker.training.config import TrainConfig
from gangline_worker.training.experts import MixtureOfExperts
from gangline_worker.training.gradients import spread_nonfinite
from gangline_worker.training.layout import Layout
from gangline_worker.training.model import Transformer, loss_of
from gangline_worker.training.pipeline import Pipeline
from gangline_worker.training.tensor_parallel import share_out_matrices
from gangline_worker.training.world import World, compute_dtype


@dataclass(frozen=True)
class ParallelModel:
    """The model spread over ranks; `plain` has this rank's parameters under their own names."""

    plain: Transformer
    module: nn.Module
    accumulation: int
    autocast_dtype: torch.dtype | None = None
    mesh: DeviceMesh | None = None
    """The ranks that hold this stage; None: every rank holds all of the model."""
    stages: dist.ProcessGroup | None = None
    pipeline: Pipeline | None = None

    def backward(self, inputs: Tensor, targets: Tensor) -> Tensor | None:
        """Gradients of the mean loss over all data ranks' samples; gives that of this one's.

        None where the model does not end on this rank.
        """
        if self.pipeline is not None:
            return self.pipeline.backward(inputs, targets)
        loss_sum = torch.zeros((), device=inputs.device)
        parts = zip(inputs.chunk(self.accumulation), targets.chunk(self.accumulation), strict=True)
        for i, (micro_inputs, micro_targets) in enumerate(parts, start=1):
            with self._micro_step(last=i == self.accumulation):
                logits = self.module(micro_inputs)
                loss = loss_of(logits, micro_targets) / self.accumulation
                spread_nonfinite(loss).backward()  # type: ignore[no-untyped-call]
            loss_sum += loss.detach()
        return loss_sum

    @torch.no_grad()
    def loss(self, inputs: Tensor, targets: Tensor) -> Tensor | None:
        """The mean loss of this rank's samples alone; None where the model does not end here."""
        if self.pipeline is not None:
            found = self.pipeline.loss(inputs, targets)
        else:
            losses = []
            parts = (inputs.chunk(self.accumulation), targets.chunk(self.accumulation))
            for micro_inputs, micro_targets in zip(*parts, strict=True):
                with self._micro_step(last=True):
                    losses.append(loss_of(self.module(micro_inputs), micro_targets))
            found = torch.stack(losses).mean()
        for part in self.plain.modules():  # no backward pass does it, and the weights will change
            if isinstance(part, FSDPModule):
                part.reshard()
        return found

    @contextlib.contextmanager
    def _micro_step(self, *, last: bool) -> Iterator[None]:
        """Around forward and backward of one micro-batch: gradients are exchanged in the last."""
        quiet: AbstractContextManager[object] = contextlib.nullcontext()
        if isinstance(self.module, FSDPModule):
            self.module.set_requires_gradient_sync(last)
        elif isinstance(self.module, DistributedDataParallel) and not last:
            quiet = self.module.no_sync()
        cast: AbstractContextManager[object] = contextlib.nullcontext()
        if self.autocast_dtype is not None:
            cast = torch.autocast(self.plain.cos.device.type, self.autocast_dtype)
        with quiet, cast:
            yield


def spread(config: TrainConfig, world: World, layout: Layout) -> ParallelModel:
    """Build the model on meta, spread it, and give it memory; its weights are not yet set."""
    dtype = compute_dtype(config, world.device)
    with torch.device("meta"):
        model = Transformer(config, layout)
    if layout.whole_copies:
        model.to_empty(device=world.device)
        model.reset_buffers()
        wrapped = DistributedDataParallel(model, init_sync=False, gradient_as_bucket_view=True)
        mixed = dtype if dtype != torch.float32 else None
        return ParallelModel(model, wrapped, config.accumulation, mixed)
    shape = layout.shape
    mesh = _mesh(world, {"pipeline": shape.pipeline, "replicas": shape.replicas,
                         "shard": shape.shard, "tensor": shape.tensor})  # fmt: skip
    if shape.tensor > 1:
        share_out_matrices(model, mesh["tensor"])
    _shard(model, _part(mesh, "replicas", "shard"), _experts_mesh(world, shape), dtype, layout)
    model.to_empty(device=world.device)
    model.reset_buffers()
    stage_mesh = _part(mesh, "replicas", "shard", "tensor")
    if shape.pipeline == 1:
        return ParallelModel(model, model, config.accumulation, mesh=stage_mesh)
    stages = mesh["pipeline"].get_group()
    pipeline = Pipeline(
        model, config, layout, device=world.device, stream_dtype=dtype, group=stages
    )
    return ParallelModel(
        model, model, config.accumulation, mesh=stage_mesh, stages=stages, pipeline=pipeline
    )


def _mesh(world: World, sizes: dict[str, int]) -> DeviceMesh:
    """A mesh of the dimensions that are not 1, and of `shard`: each costs a group at the start."""
    kept = {name: size for name, size in sizes.items() if size > 1 or name == "shard"}
    return init_device_mesh(world.device.type, tuple(kept.values()), mesh_dim_names=tuple(kept))


def _part(mesh: DeviceMesh, *names: str) -> DeviceMesh:
    kept = tuple(name for name in names if name in (mesh.mesh_dim_names or ()))
    return mesh if kept == mesh.mesh_dim_names else mesh[kept]


def _experts_mesh(world: World, shape: Shape) -> DeviceMesh | None:
    """The same ranks seen otherwise: those that share out the experts, and copies of these."""
    if shape.expert == 1:
        return None
    return _mesh(world, {"pipeline": shape.pipeline, "shard": shape.data_ranks // shape.expert,
                         "expert": shape.expert})  # fmt: skip


def _shard(
    model: Transformer,
    mesh: DeviceMesh,
    experts_mesh: DeviceMesh | None,
    dtype: torch.dtype,
    layout: Layout,
) -> None:
    """FSDP2 of each layer, then of the rest; experts that are shared out are sharded apart."""
    inner = outer = MixedPrecisionPolicy()
    if dtype != torch.float32:
        inner = outer = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
        if layout.last_stage:
            outer = dataclasses.replace(outer, output_dtype=torch.float32)
    # Stages are used once a micro-batch: to gather again each time would cost more than memory.
    again = layout.shape.pipeline == 1
    for layer in model.layers.values():
        if experts_mesh is not None:
            mixture = cast("MixtureOfExperts", layer.ffn)
            mixture.group = experts_mesh["expert"].get_group()
            experts = mixture.experts
            for name, whole in list(experts.named_parameters()):
                mine = distribute_tensor(whole, experts_mesh["expert"], [Shard(0)])
                experts.register_parameter(name, nn.Parameter(mine))
            apart = fully_shard(
                experts, mesh=experts_mesh["shard"], mp_policy=inner, reshard_after_forward=again
            )
            # Their gradients come from all data ranks, however few of these share the shards.
            apart.set_gradient_divide_factor(float(layout.shape.data_ranks))
            # Gloo cannot divide as it reduces; torch 2.15 divides twice where it need not reduce.
            apart.set_force_sum_reduction_for_comms(experts_mesh["shard"].size() > 1)
        fully_shard(layer, mesh=mesh, mp_policy=inner, reshard_after_forward=again)
    fully_shard(model, mesh=mesh, mp_policy=outer, reshard_after_forward=again)
