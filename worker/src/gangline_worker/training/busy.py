"""How long a rank itself works in a step, and not how long it waits for others in collectives.

Measured are the layers' forward passes, which are the same work on every rank; where FSDP gathers a
layer's weights, the clock starts after. With tensor or expert parallelism ranks meet inside of a
layer, so of these only ranks that do not meet there differ.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

import torch
from torch import nn


class LayerClock:
    """Sums up the forward passes of layers. Cost: about 2 us a layer and pass."""

    def __init__(self, layers: Iterable[nn.Module], device: torch.device) -> None:
        """Call it when the layers are sharded: its hooks stand inside of FSDP's."""
        self._cuda = device.type == "cuda"
        self._began_s = self._sum_s = 0.0
        self._began: torch.cuda.Event | None = None
        self._passes: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        for layer in layers:
            layer.register_forward_pre_hook(self._begin)
            layer.register_forward_hook(self._end, prepend=True)

    def take(self) -> float:
        """Seconds since the last call; on a GPU all passes must be over."""
        if self._passes:
            self._sum_s = sum(began.elapsed_time(ended) for began, ended in self._passes) / 1000
            self._passes.clear()
        found, self._sum_s = self._sum_s, 0.0
        return found

    def _begin(self, _layer: nn.Module, _arguments: object) -> None:
        if self._cuda:
            self._began = _now()
        self._began_s = time.perf_counter()

    def _end(self, _layer: nn.Module, _arguments: object, _result: object) -> None:
        if self._began is not None:
            self._passes.append((self._began, _now()))
        else:
            self._sum_s += time.perf_counter() - self._began_s


def _now() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event
