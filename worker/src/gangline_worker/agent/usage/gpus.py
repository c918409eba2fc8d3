"""The use of GPUs by NVML. A value that a GPU or its driver does not give is None."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pynvml


@dataclass(frozen=True, slots=True)
class GpuReading:
    """One GPU: percents of its time, its memory in bytes, its power in watts."""

    index: int
    utilization: float | None = None
    """Of the time, a kernel ran."""
    sm_activity: float | None = None
    """Of its multiprocessors, so many were busy on average since the reading before."""
    memory_used: int | None = None
    memory_total: int | None = None
    power_w: float | None = None


class GpuReader:
    """Reads these GPUs. NVML must be open; it may take as long as the driver likes."""

    def __init__(self, indexes: Sequence[int]) -> None:
        self._indexes = tuple(indexes)
        self._samples: dict[int, Any] = {}

    def read(self) -> tuple[GpuReading, ...]:
        """The present use of each."""
        return tuple(self._read(index) for index in self._indexes)

    def _read(self, index: int) -> GpuReading:
        handle = _asked(pynvml.nvmlDeviceGetHandleByIndex, index)
        if handle is None:
            return GpuReading(index)
        rates = _asked(pynvml.nvmlDeviceGetUtilizationRates, handle)
        memory = _asked(pynvml.nvmlDeviceGetMemoryInfo, handle)
        milliwatts = _asked(pynvml.nvmlDeviceGetPowerUsage, handle)
        return GpuReading(
            index,
            utilization=None if rates is None else float(rates.gpu),
            sm_activity=self._sm_activity(index, handle),
            memory_used=None if memory is None else int(memory.used),
            memory_total=None if memory is None else int(memory.total),
            power_w=None if milliwatts is None else milliwatts / 1000,
        )

    def _sm_activity(self, index: int, handle: object) -> float | None:
        """By NVML's GPM, from Hopper on: from the sample before to this one."""
        support = _asked(pynvml.nvmlGpmQueryDeviceSupport, handle)
        if support is None or not support.isSupportedDevice:
            return None
        sample = _asked(pynvml.nvmlGpmSampleAlloc)
        if sample is None:
            return None
        if _asked(pynvml.nvmlGpmSampleGet, handle, sample) is None:
            _asked(pynvml.nvmlGpmSampleFree, sample)
            return None
        before, self._samples[index] = self._samples.get(index), sample
        if before is None:
            return None
        wanted = pynvml.c_nvmlGpmMetricsGet_t()
        wanted.version = pynvml.NVML_GPM_METRICS_GET_VERSION
        wanted.numMetrics = 1
        wanted.sample1, wanted.sample2 = before, sample
        wanted.metrics[0].metricId = pynvml.NVML_GPM_METRIC_SM_UTIL
        found = _asked(pynvml.nvmlGpmMetricsGet, wanted)
        _asked(pynvml.nvmlGpmSampleFree, before)
        if found is None or found.metrics[0].nvmlReturn != pynvml.NVML_SUCCESS:
            return None
        return min(100.0, max(0.0, float(found.metrics[0].value)))


def _asked(ask: Callable[..., Any], *given: object) -> Any:
    """The answer; None when NVML refuses."""
    try:
        return ask(*given)
    except pynvml.NVMLError:
        return None
