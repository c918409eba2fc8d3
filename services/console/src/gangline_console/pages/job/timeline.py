"""A job's life as spans of time by attempt, with checkpoints and incidents, laid out for a drawing.

Pure: from events of the bus and answers of REST. Places are percent of the drawing's width.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from gangline_schemas.api.checkpoints import Checkpoint
from gangline_schemas.api.incidents import Incident, Notice
from gangline_schemas.api.jobs import Job
from gangline_schemas.api.logs import BusEvent

TYPES = ("job.state.changed", "gang.stopping", "gang.released")
"""The events that a timeline is made of."""
PHASES = {
    "pending": "queued", "scheduled": "allocated", "initializing": "starting",
    "running": "running", "checkpointing": "saving", "preempted": "queued",
}  # fmt: skip
"""The phase of each state of a job that has not ended."""
_APART = 1.2
"""Checkpoints are drawn so far apart, in percent of the width; the table has all."""
ROWS = 12
"""Attempts that are drawn: the newest ones. The table has all."""


@dataclass(frozen=True, slots=True)
class Span:
    """One phase of one attempt; `end` is None while it lasts."""

    attempt: int
    phase: str
    start: datetime
    end: datetime | None
    note: str = ""

    def seconds(self, now: datetime) -> float:
        """How long it lasted, or has lasted."""
        return max(0.0, ((self.end or now) - self.start).total_seconds())


@dataclass(frozen=True, slots=True)
class Mark:
    """Something at one moment of an attempt. `kind`: checkpoint, incident or notice."""

    attempt: int
    kind: str
    at: datetime
    text: str


@dataclass(frozen=True)
class Timeline:
    """All spans and marks, in order of time."""

    spans: tuple[Span, ...]
    marks: tuple[Mark, ...]
    start: datetime
    end: datetime

    def place(self, at: datetime) -> float:
        """Where a moment is drawn, in percent."""
        whole = (self.end - self.start).total_seconds() or 1.0
        return round(100 * min(1.0, max(0.0, (at - self.start).total_seconds() / whole)), 3)

    def width(self, span: Span) -> float:
        """How wide a span is drawn, in percent; never invisible."""
        return round(max(0.25, self.place(span.end or self.end) - self.place(span.start)), 3)

    @property
    def drawn(self) -> list[Mark]:
        """The marks that are drawn: checkpoints apart from each other, and above them the rest."""
        found: list[Mark] = []
        last: dict[int, float] = {}
        for mark in self.marks:
            place = self.place(mark.at)
            if mark.kind == "checkpoint" and place - last.get(mark.attempt, -100.0) >= _APART:
                found.append(mark)
                last[mark.attempt] = place
        return [*found, *(mark for mark in self.marks if mark.kind != "checkpoint")]

    @property
    def attempts(self) -> list[int]:
        """The attempts that are drawn, oldest first."""
        return sorted({span.attempt for span in self.spans})[-ROWS:]

    @property
    def ticks(self) -> list[datetime]:
        """Some round moments for the axis."""
        whole = (self.end - self.start).total_seconds()
        each = next((step for step in _STEPS if whole / step <= 6), _STEPS[-1])
        first = self.start.timestamp() // each * each + each
        found: list[datetime] = []
        while first < self.end.timestamp() and len(found) < 50:
            found.append(self.start + timedelta(seconds=first - self.start.timestamp()))
            first += each
        return found


_STEPS = (
    1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 4 * 3600, 12 * 3600, 86400, 2 * 86400,
    7 * 86400, 30 * 86400,
)  # fmt: skip


@dataclass
class _Building:
    spans: list[Span] = field(default_factory=list)
    open: Span | None = None
    failed: bool = False

    def begin(self, attempt: int, phase: str, at: datetime, note: str) -> None:
        self.close(at)
        self.open = Span(attempt, phase, at, None, note)

    def close(self, at: datetime | None) -> None:
        if self.open is not None:
            last = self.open
            self.spans.append(Span(last.attempt, last.phase, last.start, at, last.note))
        self.open = None


def build(
    job: Job,
    events: Iterable[BusEvent],
    checkpoints: Sequence[Checkpoint],
    incidents: Sequence[Incident],
    notices: Sequence[Notice],
    now: datetime,
) -> Timeline:
    """The timeline of a job. Attempt n begins where it waits for its GPUs."""
    made = _Building()
    for event in events:
        if event.type == "gang.stopping":
            made.failed = event.data.get("reason") == "failed"
            if made.open is not None:
                why = f"stopping: {event.data.get('reason', '')}"
                made.begin(made.open.attempt, "stopping", event.time, why)
        elif event.type == "gang.released":
            made.failed = event.data.get("reason") == "failed"
        elif event.type == "job.state.changed":
            _state(made, event)
    made.close(job.ended_at)
    marks = [
        Mark(
            row.attempt, "checkpoint", row.committed_at,
            f"checkpoint of step {row.step:,}, {row.status}",
        )
        for row in checkpoints
    ]  # fmt: skip
    marks += [Mark(row.attempt, "incident", row.failed_at, row.message) for row in incidents]
    marks += [Mark(row.attempt, "notice", row.noted_at, row.message) for row in notices]
    marks.sort(key=lambda mark: mark.at)
    start = made.spans[0].start if made.spans else job.submitted_at
    end = max(job.ended_at or now, start + timedelta(seconds=1))
    return Timeline(tuple(made.spans), tuple(marks), start, end)


def _state(made: _Building, event: BusEvent) -> None:
    state, attempt = str(event.data.get("state")), int(event.data.get("attempt", 0))
    phase, note = PHASES.get(state), str(event.data.get("reason", ""))
    if phase is None:
        made.close(event.time)
        return
    if phase == "queued":  # it waits for its next attempt
        attempt += 1
        phase = "restarting" if made.failed else "queued"
    elif phase == "allocated" and made.failed:
        phase = "restarting"
    if phase == "running":
        made.failed = False
    if made.open is not None and (made.open.attempt, made.open.phase) == (attempt, phase):
        return
    made.begin(attempt, phase, event.time, note)
