"""Values as people read them: durations, sizes, sparklines, and tables that fit 80 columns."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, TypeVar

WIDTH = 80
NONE = "-"
_BARS = "▁▂▃▄▅▆▇█"
_GAP = "  "
_MIN_COLUMN = 4


ItemT = TypeVar("ItemT")


@dataclass(frozen=True)
class Column(Generic[ItemT]):
    """One column, and its `cell` of an item. `flexible` ones are shortened until the table fits.

    The widest is shortened first. `whole` ones never are, as people copy what stands there: the
    lines of such a table may be longer than others.
    """

    title: str
    cell: Callable[[ItemT], str] = str
    right: bool = False
    flexible: bool = False
    whole: bool = False


def listing(columns: Sequence[Column[ItemT]], items: Iterable[ItemT]) -> str:
    """A table with a row for each item; see `table`."""
    return table(columns, [[column.cell(item) for column in columns] for item in items])


def table(columns: Sequence[Column[Any]], rows: Sequence[Sequence[str]], width: int = WIDTH) -> str:
    """Lines of a table as wide as `width` at most where it can be; shortened cells end in '…'."""
    widths = [
        max(len(column.title), *(len(row[index]) for row in rows), 0)
        for index, column in enumerate(columns)
    ]
    room = width - len(_GAP) * (len(columns) - 1)
    flexible = [index for index, column in enumerate(columns) if column.flexible]
    others = [] if any(column.whole for column in columns) else [*range(len(columns))]
    while sum(widths) > room:
        candidates = [index for index in flexible if widths[index] > _MIN_COLUMN] or [
            index for index in others if widths[index] > _MIN_COLUMN
        ]
        if not candidates:
            break
        widest = max(candidates, key=lambda index: widths[index])
        widths[widest] -= 1
    lines = [_line([column.title for column in columns], columns, widths)]
    lines += [_line(row, columns, widths) for row in rows]
    return "\n".join(lines)


def _line(cells: Sequence[str], columns: Sequence[Column[Any]], widths: Sequence[int]) -> str:
    shown = []
    for cell, column, size in zip(cells, columns, widths, strict=True):
        text = shorten(plain(cell), size)
        shown.append(text.rjust(size) if column.right else text.ljust(size))
    return _GAP.join(shown).rstrip()


def shorten(text: str, size: int) -> str:
    """At most `size` characters; a cut is marked."""
    return text if len(text) <= size else f"{text[: max(0, size - 1)]}…"


def plain(text: str) -> str:
    """Without control characters: what a job wrote must not steer the terminal."""
    return "".join(char if char.isprintable() else _visible(char) for char in text)


def _visible(char: str) -> str:
    return " " if char in "\t\n\r" else "\N{REPLACEMENT CHARACTER}"


def log_text(text: str) -> str:
    """A log line for a terminal: tabs stay, colours and cursor movements do not."""
    return "\t".join(plain(part) for part in text.split("\t"))


def wrap(text: str, indent: str = "", width: int = WIDTH) -> str:
    """Words in lines of at most `width`, each after `indent`; words that are longer are broken."""
    return textwrap.fill(
        plain(text),
        width,
        initial_indent=indent,
        subsequent_indent=indent,
        break_on_hyphens=False,
    )


def labelled(name: str, text: str, indent: int) -> str:
    """`name` and then `text` from column `indent` on, wrapped."""
    return name.ljust(indent) + wrap(text, " " * indent)[indent:]


def count(number: int, thing: str) -> str:
    """1 GPU, 2 GPUs."""
    return f"{number} {thing}{'' if number == 1 else 's'}"


def duration(seconds: float | None) -> str:
    """2 units at most: 8 s, 3 min 20 s, 2 h 5 min, 4 d 3 h."""
    if seconds is None or not math.isfinite(seconds):
        return NONE
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    for unit, size, smaller, part in (("min", 60, "s", 1), ("h", 3600, "min", 60)):
        if whole < size * (60 if unit == "min" else 24):
            rest = whole % size // part
            return f"{whole // size} {unit}" + (f" {rest} {smaller}" if rest else "")
    rest = whole % 86400 // 3600
    return f"{whole // 86400} d" + (f" {rest} h" if rest else "")


def age(moment: datetime | None, now: datetime) -> str:
    """How long ago."""
    return NONE if moment is None else duration((now - moment).total_seconds())


def short_age(moment: datetime | None, now: datetime) -> str:
    """How long ago, in one unit, for a narrow column."""
    return " ".join(age(moment, now).split(" ")[:2])


def size(count: float | None) -> str:
    """Bytes with a decimal unit: 512 B, 1.6 GB."""
    if count is None:
        return NONE
    value, units = float(count), ["B", "kB", "MB", "GB", "TB", "PB"]
    while value >= 1000 and len(units) > 1:
        value /= 1000
        units.pop(0)
    return f"{value:.0f} {units[0]}" if units[0] == "B" else f"{value:.1f} {units[0]}"


def number(value: float | None) -> str:
    """Four significant digits, without an exponent where that is readable."""
    if value is None:
        return NONE
    if not math.isfinite(value):
        return str(value)
    if value and (abs(value) >= 1e7 or abs(value) < 1e-3):
        return f"{value:.2e}"
    if value == int(value) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def percent(share: float | None) -> str:
    """0.413 as 41.3 %."""
    return NONE if share is None else f"{share * 100:.1f} %"


def sparkline(values: Sequence[float], width: int = 40) -> str:
    """The curve of finite values in at most `width` characters, each the mean of its share."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return ""
    count = min(width, len(finite))
    means = []
    for index in range(count):
        part = finite[index * len(finite) // count : (index + 1) * len(finite) // count]
        means.append(sum(part) / len(part))
    low, high = min(means), max(means)
    span = high - low
    return bars([(mean - low) / span if span else 0.0 for mean in means])


def bars(places: Sequence[float | None]) -> str:
    """A character for each place from 0 to 1; a space for None."""
    last = len(_BARS) - 1
    return "".join(" " if place is None else _BARS[round(place * last)] for place in places)
