"""What NVML says of the health of GPUs. A value that a GPU or its driver does not tell is None."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pynvml

from gangline_schemas.events.workers import GpuHealth

_EVENTS_A_READING = 64
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


class GpuWatch:
    """All GPUs of this machine, () where there is no driver. It hears Xids while it lives."""

    def __init__(self) -> None:
        self._handles: list[object] = []
        self._xids: dict[int, list[int]] = {}
        self._events: object | None = None
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlInit()
            for index in range(pynvml.nvmlDeviceGetCount()):
                self._handles.append(pynvml.nvmlDeviceGetHandleByIndex(index))
        if self._handles:
            self._listen()

    def read(self) -> tuple[GpuHealth, ...]:
        """One entry for each GPU."""
        self._hear_xids()
        return tuple(self._health(index, handle) for index, handle in enumerate(self._handles))

    def _listen(self) -> None:
        with contextlib.suppress(pynvml.NVMLError):
            self._events = pynvml.nvmlEventSetCreate()
            for handle in self._handles:
                pynvml.nvmlDeviceRegisterEvents(
                    handle, pynvml.nvmlEventTypeXidCriticalError, self._events
                )

    def _hear_xids(self) -> None:
        if self._events is None:
            return
        with contextlib.suppress(pynvml.NVMLError):  # also the timeout: there are no more
            for _ in range(_EVENTS_A_READING):
                event = pynvml.nvmlEventSetWait_v2(self._events, 0)
                index = pynvml.nvmlDeviceGetIndex(event.device)
                self._xids.setdefault(index, []).append(int(event.eventData))

    def _health(self, index: int, handle: object) -> GpuHealth:
        def ecc(kind: int) -> Any:
            return _told(pynvml.nvmlDeviceGetTotalEccErrors, handle, kind, pynvml.NVML_VOLATILE_ECC)

        xids = self._xids.get(index, [])
        remapped = _told(pynvml.nvmlDeviceGetRemappedRows, handle)
        reasons = _told(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle) or 0
        return GpuHealth(
            index=index,
            temperature_c=_told(
                pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU
            ),
            slowdown_c=_told(
                pynvml.nvmlDeviceGetTemperatureThreshold,
                handle,
                pynvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN,
            ),
            ecc_corrected=ecc(pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED),
            ecc_uncorrected=ecc(pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED),
            reset_needed=bool(remapped[2] or remapped[3]) if remapped is not None else None,
            xids=len(xids),
            last_xid=xids[-1] if xids else None,
            nvlink_errors=_link_errors(handle),
            slowed_by=tuple(name for reason, name in _SLOWED.items() if reasons & reason),
        )


def _link_errors(handle: object) -> int | None:
    """Over all links and kinds; None: it has no links, or does not tell."""
    found = [
        _told(pynvml.nvmlDeviceGetNvLinkErrorCounter, handle, link, kind)
        for link in range(pynvml.NVML_NVLINK_MAX_LINKS)
        if _told(pynvml.nvmlDeviceGetNvLinkState, handle, link)
        for kind in _LINK_ERRORS
    ]
    told = [errors for errors in found if errors is not None]
    return sum(told) if told else None


def _told(ask: Callable[..., Any], *given: object) -> Any:
    """Its answer; None when NVML refuses it."""
    try:
        return ask(*given)
    except pynvml.NVMLError:
        return None
