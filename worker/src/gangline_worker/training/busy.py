"""How long a rank itself works in a step, and not how long it waits for others in collectives.

Measured are forward passes of layers, which are the same work on every rank; where FSDP gathers a
layer's weights, the clock starts after. Where ranks meet inside of a layer (`own_work`), only what
lies between two meetings counts.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import cast

import torch
from torch import nn

from gangline_worker.training.experts import MixtureOfExperts
from gangline_worker.training.model import Layer, SwiGLU

Span = tuple[nn.Module, nn.Module]
"""From the beginning of the one's forward pass to the end of the other's."""


def own_work(layers: Iterable[nn.Module], *, tensor_parallel: bool) -> Iterator[Span]:
    """The spans of each layer's forward pass that a rank computes without any other.

    With tensor parallelism positions are gathered before attention and feed-forward, and shared
    out after the last matrix of each. Where experts are shared out, attention alone is timed: what
    a rank's experts have to do depends on how many tokens come, and not on the rank.
    """
    for layer in cast("Iterable[Layer]", layers):
        if tensor_parallel:  # which does not go with experts
            yield layer, layer.attention_norm
            yield layer.attention, layer.attention.wo
            yield layer.ffn_norm, layer.ffn_norm
            yield layer.ffn, cast("SwiGLU", layer.ffn).out
        elif isinstance(layer.ffn, MixtureOfExperts) and layer.ffn.group is not None:
            yield layer, layer.attention
        else:
            yield layer, layer


class LayerClock:
    """Sums up spans, one after the other. Cost: about 2 us a span and pass."""

    def __init__(self, spans: Iterable[Span], device: torch.device) -> None:
        """Call it when the layers are spread: its hooks stand inside of FSDP's and DTensor's."""
        self._cuda = device.type == "cuda"
        self._sum_s = 0.0
        self._began_s: float | None = None
        self._began: torch.cuda.Event | None = None
        self._passes: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        for first, last in spans:
            first.register_forward_pre_hook(self._begin)
            last.register_forward_hook(self._end, prepend=True)

    def take(self) -> float:
        """Seconds since the last call; on a GPU all passes must be over."""
        if self._passes:
            self._sum_s = sum(began.elapsed_time(ended) for began, ended in self._passes) / 1000
            self._passes.clear()
        found, self._sum_s = self._sum_s, 0.0
        return found

    def _begin(self, _module: nn.Module, _arguments: object) -> None:
        if self._cuda:
            self._began = _now()
        self._began_s = time.perf_counter()

    def _end(self, _module: nn.Module, _arguments: object, _result: object) -> None:
        if self._began_s is None:  # a layer that is computed again does not begin as a whole
            return
        if self._began is not None:
            self._passes.append((self._began, _now()))
        else:
            self._sum_s += time.perf_counter() - self._began_s
        self._began_s = None


def _now() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event
