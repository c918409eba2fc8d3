"""Why GPUs are not busy: the likely cause, from the phases of a run's steps.

A step waits for data, works, then waits for other ranks. The largest of both waits is the cause if
it is a fifth of the step or more. Otherwise the GPUs wait for the program itself: it is CPU bound
if the node's processors are busy, else each step gives the GPUs too little to do.
"""

from __future__ import annotations

from gangline_alerts.core.model import RunReading
from gangline_schemas.alerts import Cause

WAIT_SHARE = 0.2
BUSY_CPU_PERCENT = 85.0

ADVICE: dict[Cause, str] = {
    Cause.DATA_WAIT: "steps wait for data: give more loader workers, or prefetch more",
    Cause.SYNCHRONISATION: "ranks wait for each other: look for a straggler, or overlap "
    "communication with computing",
    Cause.CPU_BOUND: "the processors are busy: give more CPUs per GPU, or compile the model",
    Cause.SMALL_BATCH: "each step gives the GPUs little to do: raise the batch size, or compile "
    "the model",
}


def likely(run: RunReading | None, cpu_percent: float | None) -> Cause | None:
    """The likely cause; None: nothing that is known points to one."""
    waits: dict[Cause, float] = {}
    if run is not None and run.data_wait_share is not None:
        waits[Cause.DATA_WAIT] = run.data_wait_share
    if run is not None and run.step_s and run.busy_s is not None:
        waits[Cause.SYNCHRONISATION] = 1 - run.busy_s / run.step_s
    longest = max(waits, key=lambda cause: waits[cause], default=None)
    if longest is not None and waits[longest] >= WAIT_SHARE:
        return longest
    if cpu_percent is not None and cpu_percent >= BUSY_CPU_PERCENT:
        return Cause.CPU_BOUND
    return Cause.SMALL_BATCH if waits else None
