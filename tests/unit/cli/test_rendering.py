"""What people read: durations, numbers, sparklines, tables of 80 columns."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline import render
from gangline.commands.events import event_line
from gangline.commands.jobs import aged_steps, description, gpus
from gangline.commands.outcome import ending, exit_code
from gangline.commands.watch import LossHistory, line, panel
from gangline.render import Column, table
from gangline_schemas.api.base import read
from gangline_schemas.api.jobs import Job
from gangline_schemas.api.logs import BusEvent
from support.fakes.stub_gateway import FAILURE, job

NOW = datetime(2026, 11, 21, 10, 5, tzinfo=UTC)
LONG = "x" * 300


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"), (float("nan"), "-"), (-3, "0 s"), (0.4, "0 s"), (59.4, "59 s"),
        (59.6, "1 min"), (200, "3 min 20 s"), (3600, "1 h"), (7500, "2 h 5 min"),
        (86_399, "23 h 59 min"), (86_400, "1 d"), (4 * 86_400 + 3 * 3600, "4 d 3 h"),
    ],
)  # fmt: skip
def test_durations(seconds: float | None, text: str) -> None:
    assert render.duration(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"), (0.0, "0"), (2.5712345, "2.571"), (0.004, "0.004"), (3e-5, "3.00e-05"),
        (12345.6, "12,346"), (3e9, "3.00e+09"), (float("nan"), "nan"), (-2.0, "-2"),
    ],
)  # fmt: skip
def test_numbers(value: float | None, text: str) -> None:
    assert render.number(value) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(None, "-"), (0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (1.6e9, "1.6 GB")],
)
def test_sizes(count: float | None, text: str) -> None:
    assert render.size(count) == text


def test_a_sparkline_falls_with_the_loss() -> None:
    assert render.sparkline([4, 3, 2, 1], 4) == "█▆▃▁"
    assert render.sparkline([1, 1, 1]) == "▁▁▁"
    assert render.sparkline([]) == ""
    assert render.sparkline([float("nan"), 1, float("inf"), 2]) == "▁█"
    assert len(render.sparkline(range(1000), 40)) == 40


@given(
    st.lists(st.lists(st.text(max_size=200), min_size=3, max_size=3), max_size=5),
    st.integers(40, 120),
)
def test_a_table_fits_whatever_stands_in_it(rows: list[list[str]], width: int) -> None:
    columns = [
        Column("NAME", flexible=True),
        Column("STATE", flexible=True),
        Column("N", right=True),
    ]
    text = table(columns, rows, width)
    lines = text.split("\n")
    assert len(lines) == len(rows) + 1
    assert max(len(line) for line in lines) <= width
    assert all(char.isprintable() for line in lines for char in line)


def test_short_cells_are_kept_while_long_ones_are_cut() -> None:
    columns = [Column("JOB", flexible=True), Column("STATE")]
    last = table(columns, [[LONG, "running"]]).splitlines()[-1]
    assert len(last) == 80
    assert last.endswith("…  running")


def test_what_people_copy_is_never_cut() -> None:
    columns = [Column("JOB", whole=True), Column("TEAM", flexible=True), Column("STATE")]
    assert table(columns, [[LONG, "research", "running"]], 30).splitlines()[-1].startswith(LONG)
    usual = "train-elastic-84ddf87854"
    last = table(columns, [[usual, "research/vision", "cancelled"]], 50).splitlines()[-1]
    assert last.startswith(f"{usual}  research/")
    assert last.endswith("…  cancelled")
    assert len(last) == 50


@given(st.text(max_size=400))
def test_log_lines_cannot_steer_the_terminal(text: str) -> None:
    assert all(char.isprintable() or char == "\t" for char in render.log_text(text))


def busy_job() -> Job:
    return read(Job,
        job(
            job_id="l" * 63, team="t" * 63, user="u" * 100, project="p" * 63, reason=LONG,
            waiting={"code": "quota", "message": "word " * 60, "since": "2026-11-21T10:00:00Z"},
            last_checkpoint={
                "attempt": 1, "step": 15, "status": "committed", "world_size": 2,
                "committed_at": "2026-11-21T10:04:57Z", "size_bytes": 1_600_000_000,
                "write_s": 3.0, "blocked_s": 0.5,
            },
            failure=FAILURE | {"message": LONG}, restarts=2, attempt=3,
            nodes=[{"node_id": f"node-{i}", "gpus": [0], "first_rank": i} for i in range(20)],
            stopping={"reason": "preempted", "deadline": "2026-11-21T10:06:00Z"},
        )
    )  # fmt: skip


def test_the_watch_panel_fits() -> None:
    losses = LossHistory()
    for step in range(500):
        losses.add(step, 1 / (step + 1))
    text = panel(busy_job(), losses, NOW)
    assert max(len(row) for row in text.splitlines()) <= 80
    for part in ("RUNNING", "step 18/30", "60%", "loss 2.571", "█", "12,346", "31.2 %",
                 "1 min 15 s", "30 s", "step 15, 1.6 GB, 3 s ago", "preempted",
                 "rank 1 first"):  # fmt: skip
        assert part in text, part
    assert len(line(busy_job())) <= 80


def test_a_step_has_its_age_where_the_live_view_says_nothing_new() -> None:
    fresh = read(Job, job(progress_at=(NOW - timedelta(seconds=5)).isoformat()))
    old = read(Job, job(progress_at=(NOW - timedelta(seconds=90)).isoformat()))
    ended = old.model_copy(update={"state": "succeeded"})
    assert [aged_steps(one, NOW) for one in (fresh, old, ended)] == [
        "18/30", "18/30 (1 min 30 s ago)", "18/30",
    ]  # fmt: skip
    assert "18/30 (1 min 30 s ago)" in description(old, NOW)
    assert "ago" not in line(old), "a line is printed when it changes"


def test_a_job_without_new_steps_is_shown_as_stalled() -> None:
    stalled = read(Job, job(stalled_since=(NOW - timedelta(minutes=4)).isoformat()))
    for text in (description(stalled, NOW), panel(stalled, LossHistory(), NOW)):
        assert "no step for 4 min" in text
    waits = read(Job, job(data_wait_share=0.25))
    assert "25.0 % of the time waits for data" in description(waits, NOW)
    assert "stalled" not in description(waits, NOW)


@pytest.mark.parametrize(("held", "shown"), [(4, "4 GPUs"), (2, "2 of 4 GPUs"), (0, "4 GPUs")])
def test_a_gang_that_has_fewer_gpus_than_it_asks_for_says_so(held: int, shown: str) -> None:
    found = read(Job, job(gpus=4, gpus_allocated=held))
    assert f"   {shown}   " in panel(found, LossHistory(), NOW)
    assert gpus(found) == shown.removesuffix(" GPUs")


def test_a_description_names_what_is_known_and_nothing_else() -> None:
    shown = description(read(Job, job()), NOW)
    assert "18/30" in shown
    assert "5 min ago" in shown
    assert "ended" not in shown
    bare = read(Job, job("pending", step=None, total_steps=None))
    assert "step" not in description(bare, NOW)


@pytest.mark.parametrize(
    ("quiet_s", "shown"),
    [(9, "7 training, 1 waiting"), (42, "7 training, 1 waiting; rank 3 on node-1 quiet for 42 s")],
)
def test_what_ranks_do_is_shown_and_who_is_quiet(quiet_s: float, shown: str) -> None:
    quietest = {
        "rank": 3,
        "node_id": "node-1",
        "activity": "waiting",
        "step": 9,
        "quiet_s": quiet_s,
    }
    found = {"doing": {"training": 7, "waiting": 1}, "quietest": quietest}
    busy = read(Job, job(ranks=found))
    assert f"  ranks       {shown}\n" in description(busy, NOW) + "\n"
    assert f"  ranks: {shown}\n" in panel(busy, LossHistory(), NOW)
    training = read(Job, job(ranks={"doing": {"training": 8}, "quietest": None}))
    assert "ranks" not in panel(training, LossHistory(), NOW), "that is what the bar shows"


def test_a_description_fits() -> None:
    rows = description(busy_job(), NOW).splitlines()
    commands = [row for row in rows if "gangline logs" in row]  # to be copied, so never broken
    assert len(commands) == 1
    assert max(len(row) for row in rows if row not in commands) <= 80


def test_a_failure_names_the_first_rank_and_the_way_to_its_log() -> None:
    failed = read(Job, job("failed", failure=FAILURE, reason="user error"))
    text = ending(failed)
    assert "rank 1 on node-1 failed first with exit code 1 (user error), in attempt 2" in text
    assert "ZeroDivisionError: division by zero" in text
    assert "gangline logs llama-sft-0123456789 --rank 1 --attempt 2" in text


@pytest.mark.parametrize(
    ("state", "code"),
    [("succeeded", 0), ("failed", 100), ("rejected", 100), ("cancelled", 103), ("running", 101),
     ("a-state-of-tomorrow", 101)],
)  # fmt: skip
def test_exit_codes_of_states(state: str, code: int) -> None:
    assert exit_code(read(Job, job(state))) == code


def test_losses_of_repeated_steps_count_once() -> None:
    losses = LossHistory()
    for step, loss in [(1, 3.0), (2, 2.0), (1, 2.5), (None, 9.0), (3, None)]:
        losses.add(step, loss)
    assert losses.values == [2.5, 2.0]


def test_events_are_one_line() -> None:
    event = read(BusEvent,
        {
            "topic": "gangline.scheduling", "partition": 0, "offset": 3, "id": "e",
            "source": "/x", "type": "gang.allocated", "subject": "a-1",
            "time": "2026-11-21T10:00:00Z",
            "data": {"job_id": "a-1", "attempt": 2, "off": False, "rank": 0,
                     "nodes": [{}, {}], "resume": {"step": 40},
                     "spec": {"x": 1}, "note": "line\nbreak\x1b[31m", "more": LONG},
        }
    )  # fmt: skip
    text = event_line(event)
    assert text.startswith(
        "10:00:00 gang.allocated a-1  rank=0 attempt=2 nodes=2 resume=40 note=line b"
    )
    assert len(text) == 80
    assert text.isprintable()
    long_id = "a" * 63
    assert event_line(event.model_copy(update={"subject": long_id})).endswith(f" {long_id}…")
    alone = event.model_copy(update={"subject": long_id, "data": {}})
    assert event_line(alone) == f"10:00:00 gang.allocated {long_id}"
