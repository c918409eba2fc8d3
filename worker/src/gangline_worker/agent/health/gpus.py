"""The health of GPUs by NVML. A value that a GPU or its driver does not give is None."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable
from typing import Any

import pynvml

from gangline_schemas.events.heartbeats import GpuHealth
from gangline_schemas.xids import CONTAINED_XIDS, PROGRAM_XIDS
from gangline_worker.agent.host.visible_gpus import NoSuchGpu, visible_gpus

from .fitness import OFF_THE_BUS

_EVENTS_A_READING = 64
_FOLLOWING = PROGRAM_XIDS | CONTAINED_XIDS | {154}
"""Xids that may follow another one and then are no cause: programs are hit, and the recovery that
is needed is named (154)."""
_SLOWED = {
    pynvml.nvmlClocksThrottleReasonHwSlowdown: "hw_slowdown",
    pynvml.nvmlClocksThrottleReasonSwThermalSlowdown: "sw_thermal",
    pynvml.nvmlClocksThrottleReasonHwThermalSlowdown: "hw_thermal",
    pynvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown: "hw_power_brake",
}
"""Why a clock may be slowed down by trouble; idling and power caps are none."""
_LINK_ERRORS = (
    pynvml.NVML_NVLINK_ERROR_DL_REPLAY,
    pynvml.NVML_NVLINK_ERROR_DL_RECOVERY,
    pynvml.NVML_NVLINK_ERROR_DL_CRC_FLIT,
    pynvml.NVML_NVLINK_ERROR_DL_CRC_DATA,
)


class _Gpu:
    """One GPU, and the Xids that it reported."""

    def __init__(self, index: int) -> None:
        self._index = index
        self._xids = 0
        self._last_xid: int | None = None
        self._lost = self._reset_required = False
        self.handle = self._value(pynvml.nvmlDeviceGetHandleByIndex, index)

    def listen(self, events: object) -> None:
        """Let Xids come to `events`, if the driver can."""
        kind = pynvml.nvmlEventTypeXidCriticalError
        self._of(pynvml.nvmlDeviceRegisterEvents, kind, events)

    def note(self, xids: list[int]) -> None:
        """These came since the last time."""
        if xids:
            self._xids += len(xids)
            self._last_xid = ([xid for xid in xids if xid not in _FOLLOWING] or xids)[-1]
        if OFF_THE_BUS in xids:
            self._lost = True

    def health(self) -> GpuHealth:
        """Its present readings."""
        temperature = self._of(pynvml.nvmlDeviceGetTemperature, pynvml.NVML_TEMPERATURE_GPU)
        ecc = [
            self._of(pynvml.nvmlDeviceGetTotalEccErrors, kind, pynvml.NVML_VOLATILE_ECC)
            for kind in (
                pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED,
                pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
            )
        ]
        remapped = self._of(pynvml.nvmlDeviceGetRemappedRows)
        reasons = self._of(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons) or 0
        slowdown, links = self._slowdown(temperature), self._link_errors()
        reset = None if remapped is None else bool(remapped[2] or remapped[3])
        return GpuHealth(
            index=self._index,
            temperature_c=temperature,
            slowdown_c=slowdown,
            ecc_corrected=ecc[0],
            ecc_uncorrected=ecc[1],
            reset_needed=True if self._reset_required else reset,
            xids=self._xids,
            last_xid=OFF_THE_BUS if self._lost else self._last_xid,
            nvlink_errors=links,
            slowed_by=tuple(name for reason, name in _SLOWED.items() if reasons & reason),
        )

    def _slowdown(self, temperature: int | None) -> int | None:
        """Where it slows down; newer ones tell only how far that is from now."""
        limit = self._of(
            pynvml.nvmlDeviceGetTemperatureThreshold, pynvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN
        )
        if limit:
            return int(limit)
        margin = self._of(pynvml.nvmlDeviceGetMarginTemperature)
        return None if temperature is None or margin is None else int(temperature + margin)

    def _link_errors(self) -> int | None:
        """Over all links and kinds; None: it has no links, or does not tell."""
        found = [
            self._of(pynvml.nvmlDeviceGetNvLinkErrorCounter, link, kind)
            for link in range(pynvml.NVML_NVLINK_MAX_LINKS)
            if self._of(pynvml.nvmlDeviceGetNvLinkState, link)
            for kind in _LINK_ERRORS
        ]
        counts = [errors for errors in found if errors is not None]
        return sum(counts) if counts else None

    def _of(self, ask: Callable[..., Any], *given: object) -> Any:
        return None if self.handle is None else self._value(ask, self.handle, *given)

    def _value(self, ask: Callable[..., Any], *given: object) -> Any:
        """Its answer; None when NVML refuses it."""
        try:
            return ask(*given)
        except pynvml.NVMLError as error:
            if error.value == pynvml.NVML_ERROR_GPU_IS_LOST and not self._lost:
                self.note([OFF_THE_BUS])
            self._reset_required |= error.value == pynvml.NVML_ERROR_RESET_REQUIRED
            return None


class GpuWatch:
    """All GPUs that are visible here, () without a driver. It receives Xids while it lives."""

    def __init__(self) -> None:
        self._gpus: list[_Gpu] = []
        self._events: object | None = None
        with contextlib.suppress(pynvml.NVMLError, NoSuchGpu):
            pynvml.nvmlInit()
            self._gpus = [_Gpu(index) for index in visible_gpus(pynvml.nvmlDeviceGetCount())]
            self._events = pynvml.nvmlEventSetCreate()
        self._by_handle = {_address(gpu.handle): gpu for gpu in self._gpus}
        if self._events is not None:
            for gpu in self._gpus:
                gpu.listen(self._events)

    def read(self) -> tuple[GpuHealth, ...]:
        """One entry for each GPU."""
        self._read_xids()
        return tuple(gpu.health() for gpu in self._gpus)

    def _read_xids(self) -> None:
        if self._events is None:
            return
        found: dict[int | None, list[int]] = {}
        with contextlib.suppress(pynvml.NVMLError):  # also the timeout: there are no more
            for _ in range(_EVENTS_A_READING):
                event = pynvml.nvmlEventSetWait_v2(self._events, 0)
                found.setdefault(_address(event.device), []).append(int(event.eventData))
        for address, xids in found.items():
            if address in self._by_handle:
                self._by_handle[address].note(xids)


def _address(handle: object) -> int | None:
    """The identity of a handle: a GPU that is lost cannot be asked for its index."""
    return ctypes.cast(handle, ctypes.c_void_p).value  # type: ignore[arg-type]
