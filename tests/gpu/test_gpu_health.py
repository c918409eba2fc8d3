"""What NVML says of the GPUs of this machine, and the check of a node that has them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pynvml
import pytest
import torch

from gangline_worker.agent.health.gpus import GpuWatch
from gangline_worker.agent.host.inventory import find_gpus, gpu_statuses
from support.fixtures.gpu import GPUS, needs_gpus, nvml_index, rank_variables, uuid_of

_HELD = 1 << 30


@needs_gpus(1)
def test_nvml_tells_of_each_gpu_what_the_platform_asks() -> None:
    offered = find_gpus()
    assert len(offered) >= GPUS
    assert all(gpu.model not in {"cpu", "gpu"} and gpu.memory_gb > 1 for gpu in offered)
    watch = GpuWatch()
    before, after = watch.read(), watch.read()
    assert [gpu.index for gpu in before] == [gpu.index for gpu in offered]
    for old, gpu in zip(before, after, strict=True):
        assert gpu.temperature_c is not None
        assert 5 < gpu.temperature_c < 110
        assert gpu.slowdown_c is None or 60 <= gpu.slowdown_c < 130
        assert gpu.last_xid is None
        assert not gpu.reset_needed
        for name in ("ecc_corrected", "ecc_uncorrected", "nvlink_errors"):
            first, second = getattr(old, name), getattr(gpu, name)
            assert (first is None) == (second is None)
            assert first is None or first <= second


@needs_gpus(1)
def test_what_a_gpu_does_is_read_of_the_one_that_does_it() -> None:
    index = nvml_index(0)
    torch.zeros(1, device="cuda:0")  # its context takes memory too
    [before] = gpu_statuses((index,))
    held = torch.zeros(_HELD, dtype=torch.uint8, device="cuda:0")
    [after] = gpu_statuses((index,))
    assert held.is_cuda
    assert before.index == after.index == index
    assert before.memory_used_gb is not None
    assert after.memory_used_gb is not None
    assert after.memory_used_gb - before.memory_used_gb > 0.9
    assert after.utilization is None or 0 <= after.utilization <= 100
    del held
    torch.cuda.empty_cache()


@needs_gpus(1)
@pytest.mark.parametrize("place", range(GPUS or 1))
def test_a_rank_that_is_given_a_gpu_by_nvmls_number_has_that_one(place: int) -> None:
    program = "import torch; print(torch.cuda.get_device_properties(0).uuid)"
    index = nvml_index(place)
    found = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **rank_variables(place)},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    assert f"GPU-{found.stdout.strip()}" == pynvml.nvmlDeviceGetUUID(handle) == uuid_of(place)


@needs_gpus(1)
def test_this_node_passes_its_full_check(tmp_path: Path) -> None:
    """A product on each GPU; where there are two, a sum over NCCL by a process for each."""
    given = rank_variables(*range(GPUS))
    program = ["-m", "gangline_worker.agent.health.node_check", str(tmp_path), "full"]
    found = subprocess.run(
        [sys.executable, *program, given["CUDA_VISIBLE_DEVICES"]],
        env={**os.environ, **given},
        capture_output=True,
        text=True,
        check=False,
        timeout=180,
    )
    assert (found.returncode, found.stdout) == (0, ""), found.stderr
