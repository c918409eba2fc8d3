"""The norm of the whole model's gradient, wherever its parts are, and clipping by it."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm


def spread_nonfinite(loss: Tensor) -> Tensor:
    """The same loss, but if it is not finite, it and all its gradients are NaN.

    So one rank's bad loss is in every rank's gradients once these are summed, also where the
    gradients themselves would have been finite.
    """
    return loss * torch.where(loss.detach().isfinite(), 1.0, math.nan)


def clip_gradients(
    parameters: Iterable[nn.Parameter], max_norm: float, stages: dist.ProcessGroup | None
) -> Tensor:
    """Scale gradients so that their L2 norm is at most `max_norm`; gives the norm before.

    It is the same on all ranks, and not finite on all of them if any gradient is not. `stages` are
    the ranks that hold the other stages of the same model; None: there are none.
    """
    by_mesh: dict[DeviceMesh | None, list[nn.Parameter]] = {}
    for parameter in parameters:
        mesh = parameter.device_mesh if isinstance(parameter, DTensor) else None
        by_mesh.setdefault(mesh, []).append(parameter)
    norms = [_norm(group) for group in by_mesh.values()]
    total = norms[0]
    if len(norms) > 1 or stages is not None:
        squares = torch.stack(norms).square().sum()
        if stages is not None:
            dist.all_reduce(squares, group=stages)
        total = squares.sqrt()
    for group in by_mesh.values():
        clip_grads_with_norm_(group, max_norm, total)
    return total


def _norm(parameters: list[nn.Parameter]) -> Tensor:
    norm = get_total_norm([p.grad for p in parameters if p.grad is not None])
    return norm.full_tensor() if isinstance(norm, DTensor) else norm
