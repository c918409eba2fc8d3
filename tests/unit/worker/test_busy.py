"""The layers' own time: what lies between them, in collectives or elsewhere, is none of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import nn

from gangline_worker.training import busy, model
from gangline_worker.training.busy import LayerClock, own_work
from gangline_worker.training.config import TrainConfig
from gangline_worker.training.experts import MixtureOfExperts

CPU = torch.device("cpu")
MET_S = 1000.0
X = torch.ones(1, 4, 8)


class Time:
    """Passes only on request."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def perf_counter(self) -> float:
        return self.now_s

    def takes(self, module: nn.Module, seconds: float) -> None:
        """Let each forward pass of a module take so long."""
        inner = module.forward

        def forward(*arguments: torch.Tensor) -> torch.Tensor:
            self.now_s += seconds
            result: torch.Tensor = inner(*arguments)
            return result

        module.forward = forward  # type: ignore[method-assign]

    def meets(self, *_: object) -> None:
        """A hook: here ranks wait for each other."""
        self.now_s += MET_S


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Iterator[Time]:
    time = Time()
    monkeypatch.setattr(busy, "time", time)
    return time


def layer(time: Time, **settings: object) -> model.Layer:
    """A layer whose attention takes 1 s and whose other parts take 2, 4, 8 and 16 times that."""
    config = {"dim": 8, "heads": 1, "layers": 1, "seq_len": 4} | settings
    made = model.Layer(TrainConfig.model_validate(config))
    time.takes(made.attention, 1.0)
    time.takes(made.attention_norm, 2.0)
    time.takes(made.ffn_norm, 4.0)
    time.takes(made.ffn, 8.0)
    last = made.ffn.experts if isinstance(made.ffn, MixtureOfExperts) else made.ffn.out
    time.takes(last, 16.0)
    return made


def run(made: model.Layer) -> torch.Tensor:
    x, angles = X.clone().requires_grad_(), torch.ones(4, 4)
    found: torch.Tensor = made(x, angles, angles)
    return found


def test_the_passes_of_all_layers_are_summed_and_nothing_else(time: Time) -> None:
    layers = [layer(time), layer(time)]
    clock = LayerClock(own_work(layers, tensor_parallel=False), CPU)
    for _ in range(2):  # micro-batches
        for one in layers:
            time.now_s += MET_S  # weights are gathered
            run(one)
    assert clock.take() == 4 * 31.0
    assert clock.take() == 0.0


@pytest.mark.parametrize("recompute", [False, True])
def test_where_ranks_meet_inside_of_a_layer_only_what_lies_between_counts(
    time: Time, *, recompute: bool
) -> None:
    made = layer(time, recompute=recompute)
    for gathers in (made.attention, made.ffn):  # as DTensor does, before this clock is there
        gathers.register_forward_pre_hook(time.meets)
    for shares_out in (made.attention.wo, made.ffn.out):
        assert isinstance(shares_out, nn.Module)
        shares_out.register_forward_hook(time.meets)
    clock = LayerClock(own_work([made], tensor_parallel=True), CPU)
    result = run(made)
    assert time.now_s == 31.0 + 4 * MET_S
    assert clock.take() == 31.0
    result.sum().backward()
    again = clock.take()
    assert again < MET_S
    assert bool(again) == recompute


def test_of_experts_that_are_shared_out_attention_alone_counts(time: Time) -> None:
    made = layer(time, experts=2, experts_per_token=1)
    clock = LayerClock(own_work([made], tensor_parallel=False), CPU)
    run(made)
    assert clock.take() == 31.0
    made = layer(time, experts=2, experts_per_token=1)
    assert isinstance(made.ffn, MixtureOfExperts)
    made.ffn.group = dist.ProcessGroup(0, 1)
    clock = LayerClock(own_work([made], tensor_parallel=False), CPU)
    made.ffn.group = None
    run(made)
    assert clock.take() == 3.0
