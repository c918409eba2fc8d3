"""Sizes of the model that follow from its settings; without torch."""

from __future__ import annotations

VOCABULARY = 256


def hidden_width(dim: int) -> int:
    """SwiGLU's inner width: 8/3 of the model's, up to a multiple of 32."""
    return -(-8 * dim // 3 // 32) * 32
