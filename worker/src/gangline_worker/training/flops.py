"""The FLOP that the trainer's model needs for a token."""

from __future__ import annotations

import torch

from gangline_worker.training.config import TrainConfig
from gangline_worker.training.model import Transformer


def flops_per_token(config: TrainConfig) -> float:
    """6 (N - N_embedding) + 12 L d T FLOP for each token, forward and backward.

    The formula is that of Chowdhery et al., PaLM, 2022, appendix B; recomputation is not counted,
    and of experts those alone that a token goes to.
    """
    with torch.device("meta"):
        model = Transformer(config)
    used = 0.0
    for name, parameter in model.named_parameters():
        if ".experts." in name:
            used += parameter.numel() * config.experts_per_token / config.experts
        elif not name.startswith("embedding."):
            used += parameter.numel()
    return 6.0 * used + 12.0 * config.layers * config.dim * config.seq_len
