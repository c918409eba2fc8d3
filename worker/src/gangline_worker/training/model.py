"""A byte-level decoder: RMSNorm, rotary positions, SwiGLU (as in Llama, Touvron et al., 2023)."""

from __future__ import annotations

import hashlib
import math
from typing import cast

import torch
import torch.nn.functional as F  # noqa: N812 -- torch's own custom
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from gangline_worker.checkpoint.local import holdings
from gangline_worker.training.config import TrainConfig
from gangline_worker.training.experts import MixtureOfExperts
from gangline_worker.training.layout import Layout
from gangline_worker.training.shapes import VOCABULARY, hidden_width

ROPE_BASE = 10_000.0
INIT_STD = 0.02


class Attention(nn.Module):
    """Causal self-attention with rotary positions."""

    def __init__(self, config: TrainConfig) -> None:
        """Four square projections."""
        super().__init__()
        self.head_dim = config.dim // config.heads
        self.wq = nn.Linear(config.dim, config.dim, bias=False)
        self.wk = nn.Linear(config.dim, config.dim, bias=False)
        self.wv = nn.Linear(config.dim, config.dim, bias=False)
        self.wo = nn.Linear(config.dim, config.dim, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """(batch, time, dim) to the same shape. Heads are viewed as -1: they may be sharded."""
        batch, time, _ = x.shape
        q, k, v = (
            projection(x).view(batch, time, -1, self.head_dim).transpose(1, 2)
            for projection in (self.wq, self.wk, self.wv)
        )
        cos, sin = cos[:time], sin[:time]
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return cast(Tensor, self.wo(mixed.transpose(1, 2).reshape(batch, time, -1)))


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn the pairs (i, i + half) of each head by the position's angles (Su et al., 2021)."""
    a, b = x.chunk(2, dim=-1)
    cos, sin = cos.to(x.dtype), sin.to(x.dtype)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1)


class SwiGLU(nn.Module):
    """The gated feed-forward layer (Shazeer, 2020)."""

    def __init__(self, config: TrainConfig) -> None:
        """Gate and value in, one matrix out."""
        super().__init__()
        hidden = hidden_width(config.dim)
        self.gate = nn.Linear(config.dim, hidden, bias=False)
        self.value = nn.Linear(config.dim, hidden, bias=False)
        self.out = nn.Linear(hidden, config.dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, time, dim) to the same shape."""
        return cast(Tensor, self.out(F.silu(self.gate(x)) * self.value(x)))


class Layer(nn.Module):
    """Attention and feed-forward, each normed before and added to the stream."""

    def __init__(self, config: TrainConfig) -> None:
        """Recompute activations in the backward pass when the settings say so."""
        super().__init__()
        self.recompute = config.recompute
        self.attention_norm = nn.RMSNorm(config.dim, eps=1e-5)
        self.attention = Attention(config)
        self.ffn_norm = nn.RMSNorm(config.dim, eps=1e-5)
        self.ffn: SwiGLU | MixtureOfExperts = SwiGLU(config)
        if config.experts:
            self.ffn = MixtureOfExperts(
                config.experts, config.experts_per_token, config.dim, hidden_width(config.dim)
            )

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """(batch, time, dim) to the same shape."""
        if self.recompute and self.training:  # inside FSDP's hooks: weights are gathered already
            return checkpoint(self._forward, x, cos, sin, use_reentrant=False)
        return self._forward(x, cos, sin)

    def _forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), cos, sin)
        return x + cast(Tensor, self.ffn(self.ffn_norm(x)))


class Transformer(nn.Module):
    """Bytes in, logits of the next byte out. Build it on meta, then `to_empty`, then fill it.

    One stage of a pipeline is the same model without the layers, embedding and output of others.
    """

    cos: Tensor
    sin: Tensor

    def __init__(self, config: TrainConfig, layout: Layout | None = None) -> None:
        """Layers stand in a dict, so that they keep their names when stages share them out."""
        super().__init__()
        self.config = config
        first = last = True
        layers = range(config.layers)
        if layout is not None:
            first, last, layers = layout.first_stage, layout.last_stage, layout.layers(len(layers))
        self.embedding = nn.Embedding(VOCABULARY, config.dim) if first else None
        self.layers = nn.ModuleDict({str(i): Layer(config) for i in layers})
        self.norm = nn.RMSNorm(config.dim, eps=1e-5) if last else None
        self.output = nn.Linear(config.dim, VOCABULARY, bias=False) if last else None
        angles = torch.empty(config.seq_len, config.dim // config.heads // 2)
        self.register_buffer("cos", angles, persistent=False)
        self.register_buffer("sin", angles.clone(), persistent=False)

    def forward(self, inputs: Tensor) -> Tensor:
        """(batch, time) of int64 to (batch, time, 256).

        A later stage takes, and an earlier one gives, the residual stream (batch, time, dim).
        """
        x = inputs if self.embedding is None else self.embedding(inputs)
        for layer in self.layers.values():
            x = layer(x, self.cos, self.sin)
        if self.norm is None or self.output is None:
            return cast(Tensor, x)
        return cast(Tensor, self.output(self.norm(x)))

    def reset_buffers(self) -> None:
        """Fill what no checkpoint holds: the rotary angles."""
        half = self.config.dim // self.config.heads // 2
        rates = ROPE_BASE ** (-torch.arange(half, dtype=torch.float64) / half)
        angles = torch.outer(torch.arange(self.config.seq_len, dtype=torch.float64), rates)
        self.cos.copy_(angles.cos())
        self.sin.copy_(angles.sin())

    @torch.no_grad()
    def reset_weights(self, seed: int) -> None:
        """Draw the first weights: of each tensor by its name, so that sharding changes nothing."""
        scale = 1.0 / math.sqrt(2 * self.config.layers)
        parameters = dict(self.named_parameters())
        for name, mine in holdings(parameters, 0, 1).items():
            parameter = parameters[name]
            if parameter.ndim == 1:
                mine.data.fill_(1.0)
                continue
            std = INIT_STD * (
                scale if name.endswith(("wo.weight", "out.weight", "experts.out")) else 1.0
            )
            whole = torch.empty(parameter.shape).normal_(0.0, std, generator=_generator(seed, name))
            block = mine.block
            within = tuple(slice(s, s + n) for s, n in zip(block.start, block.shape, strict=True))
            mine.data.copy_(whole[within])


def _generator(seed: int, name: str) -> torch.Generator:
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross entropy in nats a byte."""
    return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())
