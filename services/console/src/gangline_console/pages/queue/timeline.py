"""Expected starts and reservations as bars on one time axis, for a picture and its table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

from gangline_console.formats import duration
from gangline_schemas.api.questions import NodeGpus, ShardOutlook

MOST_BARS = 30
_SHORTEST = timedelta(minutes=10)
_LONGEST = timedelta(days=60)
_BEYOND = 1.25
"""The axis ends so far behind the last start."""
_MOST_TICKS = 6
_STEPS_S = (60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200)
_DAY_S = 86_400
KINDS = {
    "expected": "expected to run",
    "reservation": "reserved",
    "guarantee": "owed by guarantee",
    "freed": "being freed",
}


@dataclass(frozen=True)
class Bar:
    """One job's time. `left` and `width` are percent of the axis; `cut`: it ends beyond it."""

    kind: str
    job_id: str | None
    name: str
    gpus: int
    start: datetime
    end: datetime | None
    left: float
    width: float
    cut: bool
    nodes: tuple[NodeGpus, ...] = ()
    note: str = ""

    @property
    def right(self) -> float:
        """Where it ends on the axis."""
        return min(100.0, round(self.left + self.width, 2))

    @property
    def kind_text(self) -> str:
        """Its kind in words."""
        return KINDS.get(self.kind, self.kind)


@dataclass(frozen=True)
class Tick:
    """A mark of the axis at percent of its width."""

    left: float
    text: str


@dataclass(frozen=True)
class Timeline:
    """Bars, the first to start first; `more`: bars that are left out."""

    bars: tuple[Bar, ...]
    ticks: tuple[Tick, ...]
    more: int


def timeline(shard: ShardOutlook, names: Mapping[str, str], now: datetime) -> Timeline:
    """Of one shard. `names`: of jobs by id, as far as they are known."""
    rows = [
        _Row(item.kind, item.job_id, item.gpus, item.start, item.end, item.nodes, item.victims)
        for item in shard.reserved
    ]
    reserved = {item.job_id for item in shard.reserved if item.kind != "freed"} - {None}
    rows += [
        _Row("expected", item.job_id, item.gpus, item.start, item.end)
        for item in shard.starts
        if item.start is not None and item.start_is == "estimate"
        if item.gpus and item.job_id not in reserved
    ]
    rows.sort(key=lambda row: (row.kind != "freed", row.start))
    shown = rows[:MOST_BARS]
    last = max((row.last for row in shown), default=now)
    span = min(_LONGEST, max(_SHORTEST, _BEYOND * (last - now)))
    bars = tuple(_bar(row, names, now, span) for row in shown)
    return Timeline(bars, _ticks(span), len(rows) - len(shown))


class _Row(NamedTuple):
    kind: str
    job_id: str | None
    gpus: int
    start: datetime
    end: datetime | None
    nodes: tuple[NodeGpus, ...] = ()
    victims: int = 0

    @property
    def last(self) -> datetime:
        """The axis reaches so far: to starts, and the end of GPUs that are being freed."""
        return self.end if self.kind == "freed" and self.end is not None else self.start


def _bar(row: _Row, names: Mapping[str, str], now: datetime, span: timedelta) -> Bar:
    left = _percent(row.start - now, span)
    until = 100.0 if row.end is None else _percent(row.end - now, span)
    gangs = f"{row.victims} gang{'' if row.victims == 1 else 's'} must save first"
    return Bar(
        kind=row.kind,
        job_id=row.job_id,
        name="a job of another team" if row.job_id is None else names.get(row.job_id, row.job_id),
        gpus=row.gpus,
        start=row.start,
        end=row.end,
        left=left,
        width=round(max(0.5, until - left), 2),
        cut=row.end is None or row.end - now > span,
        nodes=row.nodes,
        note=gangs if row.victims else "",
    )


def _percent(distance: timedelta, span: timedelta) -> float:
    return round(min(100.0, max(0.0, 100 * (distance / span))), 2)


def _ticks(span: timedelta) -> tuple[Tick, ...]:
    span_s = span.total_seconds()
    steps: Sequence[int] = (*_STEPS_S, *(_DAY_S * days for days in (1, 2, 4, 7, 14)))
    step = next((step for step in steps if span_s / step <= _MOST_TICKS), steps[-1])
    return tuple(
        Tick(round(100 * at / span_s, 2), duration(at) if at else "now")
        for at in range(0, int(span_s) + 1, step)
    )
