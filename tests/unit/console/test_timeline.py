"""A job's timeline from its events: phases by attempt, marks, and where they are drawn."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from gangline_console.pages.job.timeline import Mark, Timeline, build
from gangline_schemas.api.logs import BusEvent
from support.builders.console import AT, job


def at(seconds: float) -> datetime:
    return AT + timedelta(seconds=seconds)


def event(kind: str, seconds: float, **data: Any) -> BusEvent:
    return BusEvent(
        topic="gangline.scheduling", partition=0, offset=int(seconds), id=str(seconds), type=kind,
        source="s", subject="llama-0a1b", time=at(seconds), data=data,
    )  # fmt: skip


def state(seconds: float, name: str, attempt: int) -> BusEvent:
    return event("job.state.changed", seconds, state=name, attempt=attempt, reason="")


FIRST = [
    state(0, "pending", 0), state(10, "scheduled", 1), state(12, "initializing", 1),
    state(20, "running", 1), state(50, "checkpointing", 1), state(55, "running", 1),
]  # fmt: skip


def built(events: list[BusEvent], now_s: float = 100, **changes: Any) -> Timeline:
    return build(job(**changes), events, [], [], [], at(now_s))


def spans(line: Timeline) -> list[tuple[int, str, float]]:
    return [(span.attempt, span.phase, span.seconds(line.end)) for span in line.spans]


def test_an_attempt_has_its_phases_from_queue_to_now() -> None:
    assert spans(built(FIRST)) == [
        (1, "queued", 10), (1, "allocated", 2), (1, "starting", 8), (1, "running", 30),
        (1, "saving", 5), (1, "running", 45),
    ]  # fmt: skip


def test_after_a_failure_the_next_attempt_restarts() -> None:
    line = built(
        [
            *FIRST,
            event("gang.stopping", 60, attempt=1, reason="failed"),
            event("gang.released", 62, attempt=1, reason="failed"),
            state(62, "pending", 1),
            state(64, "scheduled", 2),
            state(70, "running", 2),
        ]
    )
    assert spans(line)[5:] == [
        (1, "running", 5), (1, "stopping", 2), (2, "restarting", 8), (2, "running", 30),
    ]  # fmt: skip
    assert line.attempts == [1, 2]


def test_a_preempted_job_queues_again() -> None:
    line = built(
        [
            *FIRST,
            event("gang.stopping", 60, attempt=1, reason="preemption"),
            event("gang.released", 62, attempt=1, reason="preempted"),
            state(62, "preempted", 1),
        ]
    )
    assert spans(line)[-1] == (2, "queued", 38)


def test_an_ended_job_ends_its_last_phase() -> None:
    line = built([*FIRST, state(90, "succeeded", 1)], state="succeeded", ended_at=at(90))
    assert spans(line)[-1] == (1, "running", 35)
    assert line.end == at(90)


def test_checkpoints_are_drawn_apart_and_below_other_marks() -> None:
    def mark(kind: str, second: float, attempt: int = 1) -> Mark:
        return Mark(attempt, kind, at(second), "")

    close = [mark("checkpoint", second) for second in (10, 10.5, 11, 11.5)]
    marks = (mark("notice", 5), *close, mark("checkpoint", 11, attempt=2))
    line = replace(built(FIRST), marks=marks)

    drawn = [(one.kind, one.attempt, one.at) for one in line.drawn]

    assert drawn == [
        ("checkpoint", 1, at(10)), ("checkpoint", 1, at(11.5)), ("checkpoint", 2, at(11)),
        ("notice", 1, at(5)),
    ]  # fmt: skip


def test_places_are_percent_of_the_whole_time() -> None:
    line = built(FIRST)
    assert [line.place(span.start) for span in line.spans] == [0, 10, 12, 20, 50, 55]
    assert line.width(line.spans[-1]) == 45
    assert line.place(at(-5)) == 0
    assert [tick.second for tick in line.ticks] == [30, 0, 30]
