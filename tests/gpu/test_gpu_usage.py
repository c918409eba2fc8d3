"""The use of the GPUs of this machine, as the node agent reads it."""

from __future__ import annotations

import pynvml
import torch

from gangline_worker.agent.usage.gpus import GpuReader
from support.fixtures.gpu import GPUS, needs_gpus


@needs_gpus(1)
def test_a_busy_gpu_shows_its_use() -> None:
    pynvml.nvmlInit()
    reader = GpuReader(range(GPUS))
    reader.read()
    factor = torch.randn(4096, 4096, device="cuda:0", dtype=torch.bfloat16)
    for _ in range(2_000):
        factor @ factor
    torch.cuda.synchronize()
    found = reader.read()
    assert [gpu.index for gpu in found] == list(range(GPUS))
    for gpu in found:
        assert gpu.power_w is not None
        assert gpu.power_w > 1
        assert gpu.memory_used is not None
        assert gpu.memory_total is not None
        assert 0 < gpu.memory_used <= gpu.memory_total
        assert gpu.sm_activity is None or 0 <= gpu.sm_activity <= 100
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    if pynvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice:
        assert (found[0].sm_activity or 0) > 0
