"""Values as text with their units. `static/format.js` makes the same texts in the browser."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime

NONE = "\N{EN DASH}"
"""Shown in place of a missing value."""
_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_LONG = 9
_BYTES = ("B", "KB", "MB", "GB", "TB", "PB")


def number(value: float | None, digits: int = 4) -> str:
    """With thousands separated, and so many digits that count: `12,345`, `0.0312`, `3.2e-7`."""
    if value is None:
        return NONE
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("∞" if value > 0 else "-∞")
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    size = abs(value)
    if size >= 10 ** (digits - 1) and size < 1e15:
        return f"{value:,.0f}"
    if size < 1e-4 or size >= 1e15:
        mantissa, _, exponent = f"{value:.{digits - 2}e}".partition("e")
        return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"
    text = f"{value:.{max(0, digits - 1 - math.floor(math.log10(size)))}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def shortened(text: str) -> str:
    """A fraction of many digits with four that count; other texts as they are."""
    if len(text) <= _LONG or "." not in text:
        return text
    try:
        return number(float(text))
    except ValueError:
        return text


def percent(share: float | None, digits: int = 0) -> str:
    """A share from 0 to 1 as percent."""
    return NONE if share is None else f"{100 * share:.{digits}f} %"


def size(value: float | None) -> str:
    """Bytes in powers of 1,000: `1.5 GB`."""
    if value is None:
        return NONE
    unit = 0
    while abs(value) >= 999.5 and unit < len(_BYTES) - 1:
        value, unit = value / 1000, unit + 1
    return (
        f"{value:.0f} {_BYTES[unit]}"
        if value >= 100 or not unit
        else (f"{value:.1f} {_BYTES[unit]}")
    )


def duration(seconds: float | None) -> str:
    """In its two largest units: `850 ms`, `12 s`, `3 min 20 s`, `2 h 5 min`, `3 d 4 h`."""
    if seconds is None:
        return NONE
    if seconds < 0:
        return f"-{duration(-seconds)}"
    if seconds < 1:
        return f"{1000 * seconds:.0f} ms" if seconds else "0 s"
    if seconds < 10:
        return f"{math.floor(10 * seconds) / 10:g} s"
    whole = math.floor(seconds)
    for unit, name, below, smaller in (
        (86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s"),
    ):  # fmt: skip
        if whole >= unit:
            rest = whole % unit // below
            return f"{whole // unit} {name}" + (f" {rest} {smaller}" if rest else "")
    return f"{whole} s"


def gpu_time(gpu_seconds: float | None) -> str:
    """GPU-seconds in a unit that fits: `32 GPU-s`, `5.4 GPU-min`, `1,250 GPU-h`."""
    if gpu_seconds is None:
        return NONE
    for unit_s, name in ((3600, "GPU-h"), (60, "GPU-min")):
        if gpu_seconds >= unit_s:
            return f"{number(gpu_seconds / unit_s, 3)} {name}"
    return f"{number(gpu_seconds, 3)} GPU-s"


def plain(text: str) -> str:
    """Text of a program without terminal escapes and other control characters."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", _ESCAPE.sub("", text))


def relative(moment: datetime, now: datetime) -> str:
    """A time by its distance from now: `3 min ago`, `in 2 h`; within 2 s, `now`."""
    seconds = (now - moment).total_seconds()
    if abs(seconds) < 2:
        return "now"
    first = duration(math.floor(abs(seconds)) or 1)
    parts = first.split(" ")
    short = " ".join(parts[:2])
    return f"{short} ago" if seconds > 0 else f"in {short}"


def exact(moment: datetime) -> str:
    """A time in full: `2026-11-26 02:11:07 UTC`."""
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
