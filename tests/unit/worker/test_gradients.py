"""A loss that is not finite shows in every gradient; one that is finite changes by nothing."""

from __future__ import annotations

import math

import pytest
import torch

from gangline_worker.training.gradients import clip_gradients, spread_nonfinite
from gangline_worker.training.saving import all_finite


def test_a_finite_loss_and_its_gradients_stay_as_they_are_to_the_bit() -> None:
    def gradient(told: bool) -> tuple[torch.Tensor, torch.Tensor]:
        weight = torch.linspace(-1, 1, 64, requires_grad=True)
        loss = weight.exp().mul(1 / 3).square().mean()
        (spread_nonfinite(loss) if told else loss).backward()
        assert weight.grad is not None
        return loss.detach(), weight.grad

    (loss, plain), (same, told) = gradient(told=False), gradient(told=True)
    assert torch.equal(loss, same)
    assert torch.equal(plain, told)


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
def test_a_loss_that_is_not_finite_is_in_gradients_that_would_be(bad: float) -> None:
    layer = torch.nn.Linear(4, 2)
    loss = layer(torch.ones(3, 4)).sum() + bad  # its own gradients are finite
    spread_nonfinite(loss).backward()
    norm = clip_gradients(layer.parameters(), 1.0, None)
    assert math.isnan(norm.item())


def test_all_finite_sees_each_number() -> None:
    tensors = [torch.ones(3, 3), torch.empty(0), torch.tensor(2.0)]
    assert all_finite(tensors)
    for bad in (math.nan, math.inf, -math.inf):
        tensors[0][1, 2] = bad
        assert not all_finite(tensors)
