"""What a rank computes on, and what measuring it leaves alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from gangline_worker.training.flops import measured_peak, peak_of
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


@pytest.mark.parametrize(
    ("dtype", "matmul", "tflops"),
    [
        (torch.bfloat16, "highest", 312.0),
        (torch.float32, "highest", 19.5),
        (torch.float32, "high", 156.0),
    ],
)
def test_the_base_of_mfu_is_the_data_sheets_peak_of_the_precision(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, matmul: str, tflops: float
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA A100-SXM4-80GB")
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: matmul)
    peak = peak_of(torch.device("cuda:0"), dtype)
    assert (peak.flops, peak.measured) == (pytest.approx(tflops * 1e12), False)


def test_a_peak_that_no_data_sheet_states_is_measured_and_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    peak = peak_of(torch.device("cpu"), torch.float32)
    assert (peak.flops > 0, peak.measured) == (True, True)
