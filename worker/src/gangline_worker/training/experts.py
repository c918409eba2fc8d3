"""A feed-forward layer of experts: each token goes to its best few, wherever they are.

Every token is computed (none is dropped when an expert is full), so the result does not depend on
how the experts are spread over ranks. Nothing pushes tokens to idle experts.
"""

from __future__ import annotations

from typing import cast

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 -- torch's own custom
from torch import Tensor, nn
from torch.distributed._functional_collectives import all_to_all_single_autograd, wait_tensor
from torch.distributed.tensor import DTensor


class Experts(nn.Module):
    """SwiGLU layers (Shazeer, 2020) stacked along the first dimension, which may be sharded."""

    def __init__(self, experts: int, dim: int, hidden: int) -> None:
        """Gate and value in, one matrix out, for each expert."""
        super().__init__()
        self.gate = nn.Parameter(torch.empty(experts, hidden, dim))
        self.value = nn.Parameter(torch.empty(experts, hidden, dim))
        self.out = nn.Parameter(torch.empty(experts, dim, hidden))

    def forward(self, tokens: Tensor, counts: list[int]) -> Tensor:
        """(tokens, dim), sorted by expert, `counts` for each expert held here; the same shape."""
        gate, value, out = (
            weight.to_local() if isinstance(weight, DTensor) else weight
            for weight in (self.gate, self.value, self.out)
        )
        # An expert without tokens takes part, so that its gradient is zero rather than missing.
        return torch.cat(
            [
                F.linear(F.silu(F.linear(part, gate[i])) * F.linear(part, value[i]), out[i])
                for i, part in enumerate(torch.split(tokens, counts))
            ]
        )


class MixtureOfExperts(nn.Module):
    """The best `active` experts of each token, weighted by softmax over those (Shazeer, 2017)."""

    group: dist.ProcessGroup | None = None
    """The ranks that share out the experts; None: all are here."""

    def __init__(self, experts: int, active: int, dim: int, hidden: int) -> None:
        """The router knows all experts, also those of other ranks."""
        super().__init__()
        self.active = active
        self.router = nn.Linear(dim, experts, bias=False)
        self.experts = Experts(experts, dim, hidden)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, time, dim) to the same shape."""
        tokens = x.flatten(0, 1)
        scores = self.router(tokens).float()
        best, chosen = scores.topk(self.active)
        weights = F.softmax(best, dim=-1).to(x.dtype)
        order = chosen.flatten().argsort(stable=True)  # by expert, then as they came
        counts = torch.bincount(chosen.flatten(), minlength=scores.shape[1])
        sent = tokens[order // self.active]
        if self.group is None:
            found = cast(Tensor, self.experts(sent, counts.tolist()))
        else:
            found = self._there(sent, counts, self.group)
        by_token = found[order.argsort()].view(len(tokens), self.active, -1)
        return (by_token * weights.unsqueeze(-1)).sum(1).view_as(x)

    def _there(self, tokens: Tensor, counts: Tensor, group: dist.ProcessGroup) -> Tensor:
        """Send tokens to their experts' ranks, compute what arrives here, and send it back."""
        ranks = dist.get_world_size(group)
        arriving = torch.empty_like(counts)
        dist.all_to_all_single(arriving, counts, group=group)
        out = counts.view(ranks, -1).sum(1).tolist()
        into = arriving.view(ranks, -1).sum(1).tolist()
        arrived = _exchange(tokens, into, out, group)
        mine = arriving.view(ranks, -1)  # tokens by (sender, expert of this rank)
        expert = torch.arange(mine.shape[1], device=mine.device).repeat(ranks)
        order = expert.repeat_interleave(arriving).argsort(stable=True)
        done = self.experts(arrived[order], mine.sum(0).tolist())
        return _exchange(done[order.argsort()], out, into, group)


def _exchange(rows: Tensor, into: list[int], out: list[int], group: dist.ProcessGroup) -> Tensor:
    """Give `out[r]` rows to each rank r, and get `into[r]` from it; gradients go back."""
    coming = all_to_all_single_autograd(rows.contiguous(), into, out, group)
    return cast(Tensor, wait_tensor(coming))  # type: ignore[no-untyped-call]
