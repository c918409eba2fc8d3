"""What a rank computes on, and what measuring it leaves alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from gangline_worker import mfu, peak, report
from gangline_worker.peak import Peak, measured_peak, peak_of
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


def test_a_program_reports_the_mfu_of_its_own_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peak, "_own_peak", lambda _: Peak(1e14, measured=False))
    monkeypatch.setenv("WORLD_SIZE", "8")
    assert mfu(6 * 7e9 * 4096, 0.5) == {"mfu": pytest.approx(6 * 7e9 * 4096 / (0.5 * 8e14))}
    monkeypatch.delenv("WORLD_SIZE")
    monkeypatch.setattr(peak, "_own_peak", lambda _: Peak(1e14, measured=True))
    assert mfu(5e13, 1.0) == {"mfu": pytest.approx(0.5), "mfu_peak_measured": 1.0}
    report({"loss": 1.0} | mfu(5e13, 1.0), 1)
    for seconds in (0.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match="really took"):
            mfu(1.0, seconds)


@pytest.mark.parametrize(
    ("gpu", "dtype", "asked"),
    [
        (True, None, torch.bfloat16),
        (True, torch.float16, torch.float16),
        (False, None, torch.float32),
    ],
)
def test_the_peak_is_that_of_the_ranks_own_device(
    monkeypatch: pytest.MonkeyPatch, gpu: bool, dtype: torch.dtype | None, asked: torch.dtype
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    found: list[tuple[torch.device, torch.dtype]] = []
    monkeypatch.setattr(peak, "peak_of", lambda *of: found.append(of) or Peak(1.0, measured=False))
    peak._own_peak.cache_clear()
    for _ in range(2):
        mfu(1.0, 1.0, dtype=dtype)
    peak._own_peak.cache_clear()
    assert found == [(torch.device("cuda", 1) if gpu else torch.device("cpu"), asked)]
