"""Whether a reading of a node's health lets it take gangs."""

from __future__ import annotations

from dataclasses import dataclass

from gangline_schemas.events.heartbeats import NodeHealth

OFF_THE_BUS = 79
"""The Xid of a GPU that does not answer any more; NVML says that it is lost."""


@dataclass(frozen=True, slots=True)
class FitnessLimits:
    """A node's least GB free on the disk of its folder and in memory, and its clock's accuracy."""

    disk_free_gb: float = 1.0
    memory_free_gb: float = 0.5
    clock_error_s: float = 1.0


def unfit_for(reading: NodeHealth, limits: FitnessLimits) -> tuple[str, ...]:
    """The problems, a clause each; () for none. An unreadable value is not a problem."""
    found = [
        f"GPU {gpu.index} needs a reset for its memory" for gpu in reading.gpus if gpu.reset_needed
    ]
    found += [
        f"GPU {gpu.index} has fallen off the bus"
        for gpu in reading.gpus
        if gpu.last_xid == OFF_THE_BUS
    ]
    for what, free, least in (
        ("disk", reading.disk_free_gb, limits.disk_free_gb),
        ("memory", reading.memory_available_gb, limits.memory_free_gb),
    ):
        if free is not None and free < least:
            found.append(f"its {what} has {free:.2f} GB left, and {least:.2f} are wanted")
    error_s = reading.clock_error_s
    if error_s is not None and error_s > limits.clock_error_s:
        found.append(f"its clock may be {error_s:.1f} s off")
    return tuple(found)
