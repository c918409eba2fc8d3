"""Signs of a coming failure in the readings of a node's health.

1. Uncorrectable errors are ECC of GPUs and of main memory, writes to the disk and Xids of the
   device. Each rise of their counter is a sign. Corrected errors (ECC, replays of NVLink) are a
   sign when they rise by `corrected_rise` within `window_s`.
2. A state is a sign when it begins: too hot, slowed down by the hardware, rows that wait for a
   reset, a disk or memory that is nearly full, a clock that is off. Heat must last `hot_readings`.
3. Counts from before the first reading of an incarnation are no news; states are.
4. `broken` marks signs that do not get well by themselves: such a node takes no new gangs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from gangline_schemas.events.heartbeats import GpuHealth, NodeHealth
from gangline_schemas.xids import CONTAINED_XIDS, PROGRAM_XIDS

LOST_XIDS = frozenset({46, 48, 62, 64, 79, 95, 109, 110, 119, 120, 136, 140, 143, 155, 156, 158})
"""Those for which NVIDIA's catalog names a reset of the GPU or of the node: ECC errors that are not
contained, off the bus, a GPU or its processor (GSP, PMU) that does not answer, a link."""
_SLOWED_BY_HARDWARE = frozenset({"hw_slowdown", "hw_thermal", "hw_power_brake"})

_NO_SIGN = PROGRAM_XIDS | CONTAINED_XIDS
"""They are over when their program is: see policy/classify.py."""


@dataclass(frozen=True, slots=True)
class TrendLimits:
    """Limits of signs. `save_every_s`: least time between two requests to a job; 0: no requests."""

    save_every_s: float = 600.0
    hot_c: float = 90.0
    hot_readings: int = 3
    corrected_rise: int = 100
    window_s: float = 3600.0
    disk_free_gb: float = 1.0
    memory_free_gb: float = 0.5
    clock_error_s: float = 1.0


@dataclass(frozen=True, slots=True)
class Sign:
    """One clause for people, and the time of its reading. `broken`: see the module."""

    message: str
    at: datetime
    broken: bool = False


@dataclass(frozen=True, slots=True)
class HealthReadings:
    """The health of one incarnation of a node.

    `base`: the value from which corrected errors are counted, since `base_at`. `hot`: for how many
    readings in a row each GPU has been too hot. `states`: those that hold. `signs`: of the newest
    reading.
    """

    incarnation: str
    newest: NodeHealth
    base: NodeHealth
    base_at: datetime
    hot: Mapping[int, int] = field(default_factory=dict)
    states: frozenset[str] = frozenset()
    signs: tuple[Sign, ...] = ()


def note_reading(
    known: HealthReadings | None,
    incarnation: str,
    reading: NodeHealth,
    now: datetime,
    limits: TrendLimits,
) -> HealthReadings:
    """The health with one more reading; unchanged when the reading is not newer."""
    if known is None or known.incarnation != incarnation:
        known = HealthReadings(incarnation, reading, reading, now)
    elif reading.read_at == known.newest.read_at:
        return known
    base, base_at = known.base, known.base_at
    corrected = list(_corrected(base, reading, limits))
    if corrected or not 0 <= (now - base_at).total_seconds() < limits.window_s:
        base, base_at = reading, now
    hot = {
        gpu.index: known.hot.get(gpu.index, 0) + 1 for gpu in reading.gpus if _is_hot(gpu, limits)
    }
    states = dict(_states(reading, hot, limits))
    broken = [Sign(message, now, broken=True) for message in _broken(known.newest, reading)]
    begun = [
        Sign(message, now, broken=key.startswith("reset"))
        for key, message in states.items()
        if key not in known.states
    ]
    failing = [Sign(message, now) for message in (*_failing(known.newest, reading), *corrected)]
    signs = (*broken, *begun, *failing)
    return HealthReadings(incarnation, reading, base, base_at, hot, frozenset(states), signs)


def _pairs(before: NodeHealth, after: NodeHealth) -> Iterator[tuple[GpuHealth, GpuHealth]]:
    """Each GPU that was there before, then and now."""
    known = {gpu.index: gpu for gpu in before.gpus}
    for gpu in after.gpus:
        if gpu.index in known:
            yield known[gpu.index], gpu


def _rise(before: int | None, after: int | None) -> int:
    """By how much a counter rose; 0 for one that was reset."""
    return 0 if before is None or after is None else max(0, after - before)


def _broken(before: NodeHealth, after: NodeHealth) -> Iterator[str]:
    for old, gpu in _pairs(before, after):
        if rise := _rise(old.ecc_uncorrected, gpu.ecc_uncorrected):
            yield f"GPU {gpu.index} had {rise} uncorrectable ECC error(s)"
        if gpu.xids > old.xids and gpu.last_xid in LOST_XIDS:
            yield f"GPU {gpu.index} reported Xid {gpu.last_xid}"
    if rise := _rise(before.memory_uncorrected, after.memory_uncorrected):
        yield f"its memory had {rise} uncorrectable ECC error(s)"


def _failing(before: NodeHealth, after: NodeHealth) -> Iterator[str]:
    for old, gpu in _pairs(before, after):
        if gpu.xids > old.xids and gpu.last_xid not in _NO_SIGN | LOST_XIDS:
            yield f"GPU {gpu.index} reported Xid {gpu.last_xid}"
    if rise := _rise(before.disk_write_errors, after.disk_write_errors):
        yield f"its disk refused {rise} write(s)"


def _corrected(base: NodeHealth, after: NodeHealth, limits: TrendLimits) -> Iterator[str]:
    within = f"within {limits.window_s / 60:.0f} minutes"
    for old, gpu in _pairs(base, after):
        corrected = _rise(old.ecc_corrected, gpu.ecc_corrected)
        if corrected >= limits.corrected_rise:
            yield f"GPU {gpu.index} had {corrected} corrected ECC errors {within}"
        replays = _rise(old.nvlink_errors, gpu.nvlink_errors)
        if replays >= limits.corrected_rise:
            yield f"GPU {gpu.index} had {replays} NVLink errors {within}"


def _is_hot(gpu: GpuHealth, limits: TrendLimits) -> bool:
    if gpu.temperature_c is None:
        return False
    return gpu.temperature_c >= min(limits.hot_c, gpu.slowdown_c or limits.hot_c)


def _states(
    reading: NodeHealth, hot: Mapping[int, int], limits: TrendLimits
) -> Iterator[tuple[str, str]]:
    """(key, message) of all that holds."""
    for gpu in reading.gpus:
        if hot.get(gpu.index, 0) >= limits.hot_readings:
            yield f"hot {gpu.index}", f"GPU {gpu.index} stays at {gpu.temperature_c:.0f} C"
        slowed = sorted(_SLOWED_BY_HARDWARE & {*gpu.slowed_by})
        if slowed:
            yield f"slowed {gpu.index}", f"GPU {gpu.index} is slowed down by {slowed[0]}"
        if gpu.reset_needed:
            yield f"reset {gpu.index}", f"GPU {gpu.index} needs a reset for its memory"
    for key, what, free, least in (
        ("disk", "disk", reading.disk_free_gb, limits.disk_free_gb),
        ("memory", "memory", reading.memory_available_gb, limits.memory_free_gb),
    ):
        if free is not None and free < least:
            yield key, f"its {what} has {free:.1f} GB left"
    error_s = reading.clock_error_s
    if error_s is not None and error_s > limits.clock_error_s:
        yield "clock", f"its clock may be {error_s:.1f} s off"
