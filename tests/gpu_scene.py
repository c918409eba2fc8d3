"""What a test needs to know of this machine's GPUs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import pynvml
import pytest
import torch

from gangline_worker.agent.host.drivers import driver_variables

Test = TypeVar("Test", bound=Callable[..., object])
GPUS = torch.cuda.device_count() if torch.cuda.is_available() else 0
TRAINS = """
    import sys, threading
    print("warm", "torch" in sys.modules)
    import torch
    print("gpus", torch.cuda.device_count())
    torch.manual_seed(1)
    layer = torch.nn.Linear(256, 256, device="cuda")
    optimizer = torch.optim.AdamW(layer.parameters(), fused=True)
    for step in range(3):
        loss = layer(torch.randn(8, 256, device="cuda")).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print("step", step, loss.item())
    held = torch.zeros(1 << 30, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    print("holds")
    threading.Event().wait()
"""
"""Three steps, always the same, and then a GB that is held."""


def needs_gpus(count: int) -> Callable[[Test], Test]:
    """Mark a test as one of `make test-gpu`, which is skipped where there are fewer GPUs."""
    skipped = pytest.mark.skipif(count > GPUS, reason=f"needs {count} GPU(s), CUDA sees {GPUS}")

    def marked(test: Test) -> Test:
        return pytest.mark.gpu(skipped(test))

    return marked


def nvml_index(place: int) -> int:
    """NVML's number of the GPU that CUDA has at `place` in this process."""
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByUUID(uuid_of(place))
    return int(pynvml.nvmlDeviceGetIndex(handle))


def uuid_of(place: int) -> str:
    """As NVML writes it."""
    return f"GPU-{torch.cuda.get_device_properties(place).uuid}"


def rank_variables(*places: int) -> dict[str, str]:
    """How a rank is given these GPUs."""
    return {
        **driver_variables(),
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": ",".join(str(nvml_index(place)) for place in places),
    }
