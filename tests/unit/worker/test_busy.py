"""The layers' own time: what lies between them, in collectives or elsewhere, is none of it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gangline_worker.training import busy
from gangline_worker.training.busy import LayerClock


class Time:
    """Passes only when it is told to."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def perf_counter(self) -> float:
        return self.now_s


class Layer(nn.Module):
    """Computes for so long."""

    def __init__(self, time: Time, takes_s: float) -> None:
        super().__init__()
        self._time, self._takes_s = time, takes_s

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self._time.now_s += self._takes_s
        return x


def test_the_passes_of_all_layers_are_summed_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    time = Time()
    monkeypatch.setattr(busy, "time", time)
    layers = [Layer(time, 0.5), Layer(time, 0.25)]
    clock = LayerClock(layers, torch.device("cpu"))
    for _ in range(2):  # micro-batches
        for layer in layers:
            time.now_s += 7.0  # weights are gathered
            layer(torch.ones(1))
    assert clock.take() == 1.5
    assert clock.take() == 0.0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_on_a_gpu_the_work_counts_and_not_its_launch() -> None:
    layer = nn.Linear(4096, 4096, device="cuda")
    clock = LayerClock([layer], torch.device("cuda"))
    for _ in range(10):
        layer(torch.ones(4096, 4096, device="cuda"))
    torch.cuda.synchronize()
    assert clock.take() > 0
    assert clock.take() == 0.0
