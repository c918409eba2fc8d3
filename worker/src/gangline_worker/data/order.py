"""The order of samples: a pure function of the position, the same for every world size.

An epoch visits each of `n` windows once, in the order of a keyed permutation (a Feistel network
with cycle walking, as in format-preserving encryption: Black and Rogaway, 2002), so no shuffled
list is kept and the state of the data is one integer: how many samples were used so far.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gangline_worker.data.errors import DataError

Indices = NDArray[np.uint64]

STAND_IN_TRIES = 64

_ROUNDS = 4
_STAND_IN_KEY = 0x5EED
_M1 = np.uint64(0xBF58476D1CE4E5B9)  # the mixing constants of splitmix64 (Steele et al., 2014)
_M2 = np.uint64(0x94D049BB133111EB)
_GOLDEN = 0x9E3779B97F4A7C15
_MASK64 = (1 << 64) - 1


def _mix(x: Indices) -> Indices:
    """Scramble 64 bits (splitmix64's finalizer, a bijection)."""
    x = (x ^ (x >> np.uint64(30))) * _M1
    x = (x ^ (x >> np.uint64(27))) * _M2
    return x ^ (x >> np.uint64(31))


def _round_keys(seed: int, epoch: int) -> list[np.uint64]:
    start = np.array([(seed * _GOLDEN) & _MASK64, epoch & _MASK64], dtype=np.uint64)
    mixed = _mix(start)
    base = int(mixed[0]) ^ (int(mixed[1]) * 3 & _MASK64)
    keys = np.array([(base + (i + 1) * _GOLDEN) & _MASK64 for i in range(_ROUNDS)], dtype=np.uint64)
    return list(_mix(keys))


def permute(indices: Indices, n: int, *, seed: int, epoch: int) -> Indices:
    """Map indices in [0, n) by the permutation of (seed, epoch); a bijection on [0, n)."""
    half = max(1, ((n - 1).bit_length() + 1) // 2)
    low_bits, shift = np.uint64((1 << half) - 1), np.uint64(half)
    keys = _round_keys(seed, epoch)
    result = indices.astype(np.uint64)
    todo = np.ones(len(result), dtype=bool)
    while todo.any():  # a walk ends after 4 steps on average: the domain is below 4 n
        value = result[todo]
        left, right = value >> shift, value & low_bits
        for key in keys:
            left, right = right, left ^ (_mix(right ^ key) & low_bits)
        result[todo] = (left << shift) | right
        todo = result >= np.uint64(n)
    return result


def stand_ins(index: int, n: int, seed: int) -> Iterator[int]:
    """Which samples of [0, n) to take for one that cannot be read, first to last.

    The same on every rank, and of an order of their own: no neighbour of the damage is likely.
    """
    wanted = np.array([index], dtype=np.uint64)
    for attempt in range(STAND_IN_TRIES):
        [other] = permute(wanted, n, seed=seed ^ _STAND_IN_KEY, epoch=attempt)
        yield int(other)


@dataclass(frozen=True)
class SampleOrder:
    """Which window is the sample at each position of the endless, shuffled stream."""

    n: int  # windows in an epoch
    seed: int

    def __post_init__(self) -> None:
        """Raises DataError when there is nothing to order."""
        if self.n < 1:
            raise DataError("data: holds no window of seq_len + 1 tokens; give more text")

    def at(self, position: int, count: int) -> Indices:
        """Windows of the `count` samples from `position` on."""
        positions = np.arange(position, position + count, dtype=np.uint64)
        epochs = positions // np.uint64(self.n)
        within = positions % np.uint64(self.n)
        result = np.empty_like(within)
        for epoch in np.unique(epochs):
            here = epochs == epoch
            result[here] = self._shuffled(within[here], int(epoch))
        return result

    def _shuffled(self, within: Indices, epoch: int) -> Indices:
        """Windows at places within one epoch; a bijection on [0, n)."""
        return permute(within, self.n, seed=self.seed, epoch=epoch)

    def of_rank(self, position: int, batch: int, rank: int, world_size: int) -> Indices:
        """The part of one rank in the global batch of `batch` samples at `position`.

        Concatenated by rank, the parts are `at(position, batch)`, whatever the world size.
        """
        share = rank_share(batch, world_size)
        return self.at(position + rank * share, share)


@dataclass(frozen=True)
class GroupedOrder(SampleOrder):
    """A shuffle that stays in a few places at a time, for data that is larger than its cache.

    Windows that lie side by side form groups of `group`. In an epoch the groups come in a shuffled
    order, `together` at a time, and their windows are shuffled among them. Windows after the last
    whole group come last.
    """

    group: int
    together: int

    def __post_init__(self) -> None:
        """Raises DataError when there is nothing to order, ValueError for no groups."""
        super().__post_init__()
        if self.group < 1 or self.together < 1:
            raise ValueError("group and together must be at least 1")

    def _shuffled(self, within: Indices, epoch: int) -> Indices:
        groups, span = self.n // self.group, self.group * self.together
        rest = self.n - groups * self.group
        buffers = within // np.uint64(span)
        last = within >= np.uint64(self.n - rest)
        result = np.empty_like(within)
        if last.any():
            begin = np.uint64(self.n - rest)
            result[last] = begin + permute(within[last] - begin, rest, seed=self.seed, epoch=epoch)
        for buffer in np.unique(buffers[~last]).tolist():
            here = ~last & (buffers == np.uint64(buffer))
            first = buffer * self.together
            size = min(self.together, groups - first) * self.group
            own = self.seed ^ ((buffer + 1) * _GOLDEN & _MASK64)  # each is shuffled its own way
            mixed = permute(within[here] - np.uint64(buffer * span), size, seed=own, epoch=epoch)
            slots, offsets = np.divmod(mixed, np.uint64(self.group))
            chosen = permute(np.uint64(first) + slots, groups, seed=self.seed, epoch=epoch)
            result[here] = chosen * np.uint64(self.group) + offsets
        return result


class BatchError(ValueError):
    """The batch cannot be shared out; the message says the way out."""


def rank_share(batch: int, world_size: int) -> int:
    """Samples of each rank in a global batch.

    Raises:
        BatchError: `batch` does not divide by `world_size`.
    """
    if batch % world_size:
        raise BatchError(
            f"batch_size ({batch}) does not divide by the world size ({world_size}); "
            f"choose a multiple of {world_size}, or GPUs by which it divides (resources.gpus, and "
            "resources.gpu_counts of an elastic job)"
        )
    return batch // world_size
