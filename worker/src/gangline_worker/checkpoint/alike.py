"""Digests of the tensors that all ranks must hold alike: each rank makes them of all its bytes.

Main memory is hashed by xxh3 (13 GB/s, without the interpreter lock). Tensors on a GPU are summed
there: each word times an odd number that belongs to its place, modulo 2^64. To copy them whole to
main memory would cost more than the save, of which a rank writes only a part.
"""

from __future__ import annotations

from functools import lru_cache

import torch
import xxhash

_WORDS = 1 << 22  # at once: their products take 32 MiB
_SEED = 20_26
_NEXT = 0x9E3779B97F4A7C15 - (1 << 64)  # odd, of 64 bits


@torch.no_grad()
def digest(tensor: torch.Tensor) -> str:
    """Of a tensor in main memory."""
    return f"xxh3:{xxhash.xxh3_64_hexdigest(_bytes(tensor).numpy().data)}"


@torch.no_grad()
def weighted_sum(tensor: torch.Tensor) -> torch.Tensor:
    """Of a tensor where it lies: an int64 without dimensions. It is not waited for."""
    raw = _bytes(tensor)
    if raw.data_ptr() % 4 or raw.storage_offset() % 4:
        raw = raw.clone()
    count = raw.numel() // 4
    words, rest = raw[: 4 * count].view(torch.int32), raw[4 * count :]
    weights = _weights(raw.device)
    total = torch.zeros((), dtype=torch.int64, device=raw.device)
    for part in (*(words[i : i + _WORDS] for i in range(0, count, _WORDS)), rest):
        total = total * _NEXT + (part.to(torch.int64) * weights[: part.numel()]).sum()
    return total


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    return plain.reshape(-1).view(torch.uint8)


@lru_cache(maxsize=8)
def _weights(device: torch.device) -> torch.Tensor:
    made = torch.Generator().manual_seed(_SEED)
    return (torch.randint(-(2**62), 2**62, (_WORDS,), generator=made) * 2 + 1).to(device)
