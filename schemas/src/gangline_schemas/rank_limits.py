"""The memory and CPUs that ranks may use on a node, below its agent and in pods alike."""

from __future__ import annotations

_LEAST_SHARED_BYTES = 64 << 20


def rank_share(asked: float, on_node: float, gpus: int) -> float:
    """How much of a node's memory or CPUs a rank with a GPU may use.

    It is as much as it asked for, or its GPU's share of the node if that is more. `gpus`: of the
    node; 0: they are not known.
    """
    return max(asked, on_node / gpus) if gpus else asked


def shared_memory_bytes(memory_bytes: int) -> int:
    """The size of /dev/shm of the ranks on a node that may use so much memory together."""
    return max(_LEAST_SHARED_BYTES, memory_bytes // 2)
