"""GPU time, exactly: whole GPU-microseconds, by UTC month.

Timestamps have microseconds, so GPUs times microseconds are integers: sums by job, by team and by
month are equal and not nearly equal, in whatever order they are added. Hours and seconds as floats
are for readers.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from fractions import Fraction

_MICROSECOND = timedelta(microseconds=1)
US_PER_SECOND = 1_000_000
US_PER_HOUR = 3600 * US_PER_SECOND
DECEMBER = 12


def gpu_us(gpus: int, start: datetime, end: datetime) -> int:
    """GPU-microseconds of so many GPUs between two times; 0 when the end is not after the start."""
    return gpus * max(0, (end - start) // _MICROSECOND)


def month_of(at: datetime) -> str:
    """The UTC month of a time, like 2026-11."""
    utc = at.astimezone(UTC)
    return f"{utc.year:04}-{utc.month:02}"


def month_end(at: datetime) -> datetime:
    """When the UTC month of a time is over."""
    utc = at.astimezone(UTC)
    year, month = (utc.year + 1, 1) if utc.month == DECEMBER else (utc.year, utc.month + 1)
    return datetime(year, month, 1, tzinfo=UTC)


def by_month(gpus: int, start: datetime, end: datetime) -> Iterator[tuple[str, int]]:
    """(month, GPU-microseconds) of a time that may reach over months' ends; they add up."""
    while start < end:
        stop = min(end, month_end(start))
        yield month_of(start), gpu_us(gpus, start, stop)
        start = stop


def in_month(gpus: int, start: datetime, end: datetime) -> int:
    """GPU-microseconds of it that lie in the month of `end`."""
    utc = end.astimezone(UTC)
    return gpu_us(gpus, max(start, datetime(utc.year, utc.month, 1, tzinfo=UTC)), end)


def budget_us(gpu_hours: float) -> int:
    """Hours, of a budget or a job file, in microseconds, rounded down.

    They count as they are written: the float 3.3 is a little less than 3.3, and three times the
    float 1.1 is a little more.
    """
    return int(Fraction(str(gpu_hours)) * US_PER_HOUR)


def hours(amount_us: int) -> float:
    """GPU-hours for readers."""
    return amount_us / US_PER_HOUR


def seconds(amount_us: int) -> float:
    """GPU-seconds for readers."""
    return amount_us / US_PER_SECOND
