"""Tensor parallelism: each layer's matrices are shared out, and between them the positions.

As in Megatron-LM (Shoeybi et al., 2019) with sequence parallelism (Korthikanti et al., 2022). The
residual stream and the norms hold 1/n of the positions on each rank. Attention and feed-forward
gather all of them for 1/n of the heads and of the hidden width.
"""

from __future__ import annotations

from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from gangline_worker.training.model import Transformer

_POSITIONS = Shard(1)


def share_out_matrices(model: Transformer, mesh: DeviceMesh) -> None:
    """Make every parameter a DTensor on the one-dimensional `mesh`."""
    layer: dict[str, ParallelStyle] = {
        "attention_norm": SequenceParallel(),
        "attention": PrepareModuleInput(
            input_layouts=(_POSITIONS, None, None), desired_input_layouts=(Replicate(), None, None)
        ),
        "attention.wq": ColwiseParallel(),
        "attention.wk": ColwiseParallel(),
        "attention.wv": ColwiseParallel(),
        "attention.wo": RowwiseParallel(output_layouts=_POSITIONS),
        "ffn_norm": SequenceParallel(),
        "ffn": PrepareModuleInput(
            input_layouts=(_POSITIONS,), desired_input_layouts=(Replicate(),)
        ),
        "ffn.gate": ColwiseParallel(),
        "ffn.value": ColwiseParallel(),
        "ffn.out": RowwiseParallel(output_layouts=_POSITIONS),
    }
    for part in model.layers.values():
        parallelize_module(part, mesh, layer)
    ends: dict[str, ParallelStyle] = {}
    if model.embedding is not None:
        ends["embedding"] = RowwiseParallel(input_layouts=Replicate(), output_layouts=_POSITIONS)
    if model.output is not None:
        ends["norm"] = SequenceParallel()
        ends["output"] = ColwiseParallel(input_layouts=_POSITIONS, output_layouts=Replicate())
    if ends:
        parallelize_module(model, mesh, ends)
