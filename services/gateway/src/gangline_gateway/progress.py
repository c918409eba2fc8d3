"""The newest reported step of a run, and how fast it goes. Pure."""

from __future__ import annotations

from dataclasses import replace

from gangline_gateway.live_model import Progress
from gangline_schemas.events.steps import WorkerStep

METRICS_OF_A_RUN = 64
_SMOOTHING = 0.3


def advance(known: Progress | None, event: WorkerStep) -> Progress | None:
    """The progress after a report; None when it is older than what is known.

    Of an attempt the lowest rank that reports counts; a newer attempt replaces an older one.
    """
    last = Progress(
        event.attempt,
        event.rank,
        event.step[-1],
        event.time_ms[-1],
        _last_values(event),
        team=event.team,
    )
    if known is None:
        return replace(last, s_per_step=_speed(event.step[0], event.time_ms[0], last))
    if (known.attempt, -known.rank) > (last.attempt, -last.rank):
        return None
    if (known.attempt, known.rank) != (last.attempt, last.rank):
        return replace(last, s_per_step=_speed(event.step[0], event.time_ms[0], last))
    if known.step >= last.step:
        return None
    now, before = _speed(known.step, known.time_ms, last), known.s_per_step
    speed = now or before
    if now is not None and before is not None:
        speed = before + _SMOOTHING * (now - before)
    values = {**known.metrics, **last.metrics}
    names = list(values)[:METRICS_OF_A_RUN]
    return replace(last, metrics={name: values[name] for name in names}, s_per_step=speed)


def _speed(step: int, time_ms: int, last: Progress) -> float | None:
    """Seconds per step since then; None when too little is known."""
    steps, ms = last.step - step, last.time_ms - time_ms
    return ms / 1000 / steps if steps > 0 and ms > 0 else None


def _last_values(event: WorkerStep) -> dict[str, float]:
    """The newest value of each column that has one."""
    found: dict[str, float] = {}
    for name, column in list(event.metrics.items())[:METRICS_OF_A_RUN]:
        value = next((item for item in reversed(column) if item is not None), None)
        if value is not None:
            found[name] = value
    return found
