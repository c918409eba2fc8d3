"""A rank's batches, read ahead and put on its device; a wait for one can be broken off."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor

from gangline_worker.data.prefetch import Prefetcher
from gangline_worker.data.samples import Batch
from gangline_worker.reporting import doing

SHORT_WAIT_S = 1.0
"""How long a rank waits for its data before it learns whether to save or to leave."""


class Feed:
    """Results of `read` for the positions `start`, `start + stride`, ..., each taken once."""

    def __init__(
        self,
        read: Callable[[int], Batch],
        *,
        start: int,
        stride: int,
        ahead: int,
        device: torch.device,
    ) -> None:
        """Begin to read up to `ahead` batches ahead."""
        self._batches = Prefetcher(read, start=start, stride=stride, ahead=ahead)
        self._device = device
        self._waited_s = 0.0  # for the next batch, so far
        self._waiting = False  # that this rank waits

    @property
    def waits(self) -> bool:
        """Whether the next batch is neither there nor known never to come."""
        return not self._batches.ready(within_s=0)

    @property
    def failed(self) -> bool:
        """Whether `take` will raise what reading the next batch did."""
        return self._batches.failed

    def await_batch(self) -> None:
        """Wait a second at most. A longer wait is reported, so that it does not count as a hang."""
        started = time.perf_counter()
        if not self._batches.ready(within_s=SHORT_WAIT_S) and not self._waiting:
            doing("waiting")
            self._waiting = True
        self._waited_s += time.perf_counter() - started

    def take(self, position: int) -> tuple[Tensor, Tensor, float]:
        """Inputs and targets at `position`, and for how many seconds this rank waited for them.

        Raises what reading it raised.
        """
        started = time.perf_counter()
        batch = self._batches.take(position)
        inputs = torch.from_numpy(batch.inputs).to(self._device)
        targets = torch.from_numpy(batch.targets).to(self._device)
        waited_s, self._waited_s = self._waited_s + time.perf_counter() - started, 0.0
        if self._waiting:
            doing("training")
            self._waiting = False
        return inputs, targets, waited_s
