"""What a rank computes on, and what measuring it leaves alone."""

from __future__ import annotations

import pytest
import torch

from gangline_worker.training.flops import measured_peak
from gangline_worker.training.world import own_device


@pytest.mark.parametrize(
    ("visible", "local_rank", "device"),
    [("4,5", "1", "cuda:1"), ("5", "1", "cuda:0"), ("", "1", "cpu"), ("-1", "0", "cpu")],
    ids=["a gang's GPUs", "its own alone", "a slot", "none"],
)
def test_a_rank_takes_its_gpu_of_those_that_it_sees(
    monkeypatch: pytest.MonkeyPatch, visible: str, local_rank: str, device: str
) -> None:
    count = 0 if device == "cpu" else len(visible.split(","))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setenv("LOCAL_RANK", local_rank)
    assert own_device() == torch.device(device)


def test_a_rank_that_is_given_gpus_does_not_train_on_the_cpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    with pytest.raises(RuntimeError, match="no CUDA-capable device can be used"):
        own_device()


def test_measuring_the_peak_draws_none_of_the_runs_random_numbers() -> None:
    before = torch.get_rng_state()
    assert measured_peak(torch.device("cpu"), torch.float32, 0.0) > 0
    assert torch.equal(torch.get_rng_state(), before)
