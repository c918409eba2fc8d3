"""Queue: the terms of the order, reasons, expected starts with their error, reservations."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from pydantic import BaseModel

from gangline_console.pages.queue.timeline import timeline
from gangline_schemas.api.cluster import Queue, QueueEntry, TeamList
from gangline_schemas.api.jobs import Waiting
from gangline_schemas.api.questions import (
    ExpectedStart,
    NodeGpus,
    OrderParts,
    QueueOutlook,
    Reserved,
    ShardOutlook,
    WaitMiss,
)
from support.builders.console import AT, console
from support.fakes.console_gateway import problem

HOUR = timedelta(hours=1)
SHARD = ShardOutlook(
    shard=0, order="fair", gpus_free=2, gpus_total=16,
    starts=(
        ExpectedStart(position=1, job_id="wide-1", team="research", gpus=8, start=AT + 2 * HOUR,
                      end=AT + 5 * HOUR, nodes=("n1",)),
        ExpectedStart(position=2, gpus=4, start=AT + HOUR, end=AT + 2 * HOUR),
        ExpectedStart(position=3, job_id="never-1", team="research", gpus=99),
    ),
    reserved=(
        Reserved(job_id="wide-1", team="research", kind="reservation", gpus=8, kept_now=2,
                 start=AT + 2 * HOUR, end=AT + 5 * HOUR, nodes=(NodeGpus(node_id="n1", gpus=8),)),
        Reserved(kind="freed", gpus=4, start=AT, end=AT + HOUR, victims=2),
    ),
    wait_error=WaitMiss(jobs=12, median_s=240, p90_s=900),
)  # fmt: skip


def entry(job_id: str = "wide-1", **changes: Any) -> QueueEntry:
    values: dict[str, Any] = {
        "position": 1, "job_id": job_id, "name": job_id, "team": "research", "user": "ana",
        "priority": 50, "gpus": 8, "score": 71.5, "waiting_since": AT, "waited_s": 1800.0,
        "waiting": Waiting(code="capacity", message="8 GPUs wanted, 2 free", since=AT),
        "order": OrderParts(priority=50, share_penalty=24.5, waiting_bonus=3.0, score=71.5),
    }  # fmt: skip
    return QueueEntry.model_validate(values | changes)


def answers(
    *entries: QueueEntry, outlook: BaseModel | Exception | None = None, pending: int | None = None
) -> dict[str, BaseModel | Exception]:
    return {
        "GET /v1/queue": Queue(
            queue=list(entries),
            pending_jobs=len(entries) if pending is None else pending,
            pending_gpus=12,
        ),
        "GET /v1/queue/outlook": outlook or QueueOutlook(as_of=AT, shards=[SHARD]),
        "GET /v1/teams": TeamList(teams=[]),
    }


def test_each_term_of_the_order_is_shown_with_the_reason_and_the_start_with_its_error() -> None:
    browser, _ = console(answers(entry(first_eta=AT + HOUR), pending=3))
    text = browser.get("/console/queue").text
    for shown in (
        "24.5", "71.5", "capacity", "8 GPUs wanted, 2 free", "30 min", "± 4 min", "first estimate:",
        "2 not shown: of other teams", "of 16 GPUs", "P90 15 min, last 12 starts",
        'href="/console/jobs/wide-1"', 'datetime="2026-11-26T04:00:00+00:00"',
    ):  # fmt: skip
        assert shown in text, shown


def test_reservations_are_on_the_time_axis_and_in_its_table() -> None:
    browser, _ = console(answers(entry()))
    text = browser.get("/console/queue").text
    assert 'class="bar reservation"' in text
    assert "wide-1 · 8 GPUs · reserved" in text
    assert "a job of another team · 4 GPUs · being freed" in text
    assert "2 gangs must save first" in text
    assert "n1 (8)" in text


def test_bars_lie_on_the_axis_and_are_cut_at_its_end() -> None:
    found = timeline(SHARD, {}, AT)
    assert [(bar.kind, bar.left, bar.width, bar.cut) for bar in found.bars] == [
        ("freed", 0.0, 40.0, False),
        ("expected", 40.0, 40.0, False),
        ("reservation", 80.0, 20.0, True),
    ]
    assert [(tick.left, tick.text) for tick in found.ticks][:3] == [
        (0.0, "now"), (20.0, "30 min"), (40.0, "1 h"),
    ]  # fmt: skip


def test_why_a_job_comes_before_better_scores_is_said() -> None:
    rows = (entry("again-1", comes_first="restart"), entry("owed-1", comes_first="guarantee"))
    browser, _ = console(answers(*rows))
    text = browser.get("/console/queue").text
    assert "It restarts after a failure" in text
    assert "guarantee, so it comes first" in text


def test_an_order_without_a_formula_has_no_columns_of_terms() -> None:
    outlook = QueueOutlook(as_of=AT, shards=[SHARD.model_copy(update={"order": "fifo"})])
    browser, _ = console(answers(entry(order=None), outlook=outlook))
    text = browser.get("/console/queue").text
    assert "+ Share" not in text
    assert "first in, first out" in text


def test_without_an_outlook_the_order_is_shown_and_the_page_says_so() -> None:
    away = problem(503, "no-answer", "2 questions are being answered; try again")
    browser, _ = console(answers(entry(), outlook=away))
    text = browser.get("/console/queue").text
    assert "When jobs start cannot be said now" in text
    assert "71.5" in text


def test_an_empty_queue_says_what_would_be_there_and_a_filter_how_to_end_it() -> None:
    outlook = QueueOutlook(
        as_of=AT, shards=[SHARD.model_copy(update={"starts": (), "reserved": ()})]
    )
    browser, gateway = console(answers(outlook=outlook))
    assert "gangline submit" in browser.get("/console/queue").text
    assert "Show all of mine" in browser.get("/console/queue?team=research").text
    asked = [dict(query) for path, query, _ in gateway.asked if path == "GET /v1/queue"]
    assert [query["team"] for query in asked] == [None, "research"]


def test_hostile_texts_are_escaped_in_the_table_and_the_picture() -> None:
    evil = "</text><script>alert(1)</script>\"'><img src=x>"
    rows = entry(
        name=evil, user=evil, team=evil, comes_first=evil,
        waiting=Waiting(code=evil, message=evil, since=AT),
    )  # fmt: skip
    browser, _ = console(answers(rows))
    text = browser.get("/console/queue").text
    assert "<script>alert" not in text
    assert "<img" not in text
