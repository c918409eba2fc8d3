"""The interface of any data for the trainer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Batch:
    """Inputs and the token that follows each of them, both (samples, seq_len) of int64."""

    inputs: NDArray[np.int64]
    targets: NDArray[np.int64]


class Samples(Protocol):
    """Samples in an endless, shuffled order. The state is one position."""

    @property
    def vocab_size(self) -> int:
        """Tokens are below it."""
        ...

    def digest(self) -> str:
        """32 hex digits that tell whether two ranks, or two attempts, read the same."""
        ...

    def counts(self) -> dict[str, float]:
        """Metrics of what was found wrong so far; empty when nothing was."""
        ...

    def batch(self, position: int, size: int, rank: int, world_size: int) -> Batch:
        """A rank's part of the global batch of `size` samples at `position`."""
        ...
