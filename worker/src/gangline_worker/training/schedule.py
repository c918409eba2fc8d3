"""The learning rate as a function of the step; its whole state is the step itself."""

from __future__ import annotations

import math

from gangline_worker.training.config import TrainConfig


def lr_at(step: int, config: TrainConfig) -> float:
    """The rate of step 1, 2, ...: linear warm-up, then half a cosine down to the minimum.

    The cosine is that of Loshchilov and Hutter, SGDR, 2017, without restarts.
    """
    if step <= config.warmup_steps:
        return config.lr * step / config.warmup_steps
    left = max(1, config.steps - config.warmup_steps)
    progress = min(1.0, (step - config.warmup_steps) / left)
    cosine = (1.0 + math.cos(math.pi * progress)) / 2.0
    return config.lr * (config.min_lr_ratio + (1.0 - config.min_lr_ratio) * cosine)
