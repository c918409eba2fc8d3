"""gangline.progress: once a second and run, never back, bounded, and honest about silence."""

from __future__ import annotations

import pytest

from gangline_schemas.events.progress import RunProgress
from gangline_schemas.events.steps import WorkerStep
from gangline_schemas.limits import METRIC_MAX, METRICS_PER_STEP
from gangline_tracker.views.runs import (
    EVERY_MS,
    FORGET_MS,
    LEFT_MAX,
    STALL_LEAST_MS,
    STALL_UNKNOWN_MS,
    Runs,
    stall_after_ms,
)

T0 = 1_795_248_000_000


def step(
    number: int, count: int = 1, *, run: str = "run-1", attempt: int = 1, rank: int = 0,
    team: str = "nlp", **metrics: float,
) -> WorkerStep:  # fmt: skip
    steps = tuple(range(number, number + count))
    return WorkerStep(
        run_id=run,
        team=team,
        attempt=attempt,
        rank=rank,
        step=steps,
        time_ms=tuple(T0 + at * 500 for at in steps),
        metrics={
            name: (value,) * count
            for name, value in {"loss": 10.0 - number, "tokens_per_s": 100.0, **metrics}.items()
        },
    )


def one(runs: Runs, at_ms: int) -> RunProgress:
    (found,) = runs.due(at_ms)
    return found


def test_an_event_says_the_newest_step_its_values_and_the_rates() -> None:
    runs = Runs(T0)
    for number in range(1, 11):
        runs.note(step(number, data_wait_s=0.05, step_s=0.5), T0)
    runs.note(step(10), T0)  # at least once
    found = one(runs, T0)
    assert (found.run_id, found.team, found.attempt, found.rank) == ("run-1", "nlp", 1, 0)
    assert (found.step, found.time_ms, found.step_s) == (10, T0 + 5000, 0.5)
    assert found.metrics["loss"] == 0.0
    assert found.tokens_per_s == pytest.approx(100.0)
    assert found.data_wait_share == pytest.approx(0.1)
    assert found.stalled_since is None


def test_of_a_batch_the_last_value_of_each_metric_counts() -> None:
    event = step(1, 3).model_copy(update={"metrics": {"loss": (3.0, 2.0, None), "lr": (1.0,) * 3}})
    runs = Runs(T0)
    runs.note(event, T0)
    assert one(runs, T0).metrics == {"loss": 2.0, "lr": 1.0}


def test_at_most_one_event_a_second_and_only_of_runs_that_changed() -> None:
    runs, seen = Runs(T0), []
    for tick in range(50):
        now_ms = T0 + tick * 200
        if tick < 25:
            runs.note(step(tick), now_ms)
        seen += [(now_ms, event.step) for event in runs.due(now_ms)]
    times = [at for at, _ in seen]
    assert times == [T0 + at * EVERY_MS for at in range(6)]
    assert seen[-1][1] == 24, "the last step is said, though its second had an event"
    runs.note(step(3), T0 + 60_000)  # late
    assert runs.due(T0 + 60_000) == []


def test_a_clock_that_is_set_back_stops_no_run() -> None:
    runs = Runs(T0)
    runs.note(step(1), T0)
    one(runs, T0)
    runs.note(step(2), T0 - 10**6)
    assert one(runs, T0 - 10**6).step == 2


def test_attempt_and_step_never_fall() -> None:
    runs = Runs(T0)
    seen = []
    reports = [
        step(50), step(49), step(51, rank=1), step(20, attempt=2, rank=1),
        step(99), step(18, attempt=2, rank=0), step(99, attempt=2, rank=1),
        step(21, attempt=2, rank=0), step(90, 20), step(5, attempt=3),
    ]  # fmt: skip
    for index, report in enumerate(reports):
        runs.note(report, T0)
        seen += [(e.attempt, e.step) for e in runs.due(T0 + index * EVERY_MS)]
    assert seen == [(1, 50), (2, 20), (2, 21), (3, 5)]


def test_a_new_attempt_begins_with_its_own_values() -> None:
    runs = Runs(T0)
    runs.note(step(50, custom=1.0), T0)
    one(runs, T0)
    runs.note(step(20, attempt=2), T0)
    found = one(runs, T0 + EVERY_MS)
    assert "custom" not in found.metrics
    assert found.step_s is None


def test_teams_that_report_the_same_run_do_not_touch_each_other() -> None:
    runs = Runs(T0)
    runs.note(step(5), T0)
    runs.note(step(900, attempt=9, team="vision"), T0)
    runs.note(step(6), T0)
    assert {(e.team, e.attempt, e.step) for e in runs.due(T0)} == {
        ("nlp", 1, 6),
        ("vision", 9, 900),
    }


def test_a_stall_is_said_once_and_ends_with_the_next_step() -> None:
    runs = Runs(T0)
    for number in range(1, 11):
        runs.note(step(number), T0)
    one(runs, T0)
    said = [(second, event) for second in range(120) for event in runs.due(T0 + second * 1000)]
    ((second, event),) = said
    assert second * 1000 == STALL_LEAST_MS
    assert event.stalled_since is not None
    assert event.stalled_since.timestamp() * 1000 == T0
    assert event.step == 10
    runs.note(step(11), T0 + 120_000)
    assert one(runs, T0 + 120_000).stalled_since is None


@pytest.mark.parametrize(
    ("step_s", "wanted"),
    [(None, STALL_UNKNOWN_MS), (0.01, STALL_LEAST_MS), (60.0, 600_000)],
)
def test_slow_steps_are_given_time(step_s: float | None, wanted: float) -> None:
    assert stall_after_ms(step_s) == wanted


def test_silence_while_nobody_listened_is_no_stall() -> None:
    runs = Runs(T0)
    for number in range(1, 11):
        runs.note(step(number), T0)
    one(runs, T0)
    assert runs.due(T0 + 3 * STALL_LEAST_MS) == [], "this process stood still, not the run"
    later = [
        event
        for second in range(1, STALL_LEAST_MS // 1000)
        for event in runs.due(T0 + 3 * STALL_LEAST_MS + second * 1000)
    ]
    assert later == []


def test_silence_while_the_bus_is_away_is_no_stall() -> None:
    runs = Runs(T0)
    runs.note(step(1, 10), T0)
    one(runs, T0)
    for second in range(90):
        runs.deaf(T0 + second * 1000)
        assert runs.due(T0 + second * 1000) == []
    said = [e for second in range(90, 150) for e in runs.due(T0 + second * 1000)]
    assert [event.stalled_since is not None for event in said] == [True]


def test_a_restored_run_does_not_fall_back_and_is_not_stalled_at_once() -> None:
    earlier = Runs(T0)
    for number in range(1, 11):
        earlier.note(step(number), T0)
    event = one(earlier, T0)
    restart_ms = T0 + 600_000
    runs = Runs(restart_ms)
    runs.restore(event, T0)
    for number in range(6, 11):  # its offsets were not committed
        runs.note(step(number), restart_ms)
    assert runs.due(restart_ms) == []
    runs.note(step(11), restart_ms)
    found = one(runs, restart_ms)
    assert (found.step, found.step_s) == (11, 0.5), "the rate from before, until there is one"
    runs.note(step(99, attempt=1), restart_ms)
    assert one(runs, restart_ms + EVERY_MS).step == 99


def test_a_stall_that_was_published_is_not_said_again() -> None:
    earlier = Runs(T0)
    earlier.note(step(1, 10), T0)
    earlier.due(T0)
    stalled = [e for second in range(60) for e in earlier.due(T0 + second * 1000)]
    runs = Runs(T0 + 60_000)
    runs.restore(stalled[-1], T0 + 40_000)
    assert [e for second in range(120) for e in runs.due(T0 + (60 + second) * 1000)] == []


def test_a_run_is_forgotten_after_an_hour_of_silence() -> None:
    runs = Runs(T0)
    runs.note(step(1), T0)
    for second in range(0, FORGET_MS // 1000, 2):
        runs.due(T0 + second * 1000)
        assert len(runs) == 1
    runs.due(T0 + FORGET_MS)
    assert len(runs) == 0


def test_a_run_that_was_forgotten_does_not_fall_back() -> None:
    runs = Runs(T0)
    runs.note(step(500, attempt=3), T0)
    one(runs, T0)
    for second in range(0, FORGET_MS // 1000 + 2, 2):
        runs.due(T0 + second * 1000)
    assert len(runs) == 0
    later_ms = T0 + FORGET_MS + 2000
    for late in (step(40, attempt=2), step(900, attempt=2), step(500, attempt=3)):
        runs.note(late, later_ms)
        assert (len(runs), runs.due(later_ms)) == (0, [])
    runs.note(step(499, 3, attempt=3), later_ms)
    found = one(runs, later_ms)
    assert (found.attempt, found.step) == (3, 501)


def test_a_run_that_gave_way_to_others_does_not_fall_back() -> None:
    runs = Runs(T0, limit=1)
    for name in ("a", "b"):
        runs.note(step(9, run=name), T0)
        one(runs, T0)
    runs.note(step(8, run="a"), T0)
    assert runs.due(T0 + EVERY_MS) == []
    runs.note(step(1, run="a", attempt=2), T0)
    found = one(runs, T0 + EVERY_MS)
    assert (found.run_id, found.attempt, found.step) == ("a", 2, 1)


def test_of_forgotten_runs_only_so_many_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    assert LEFT_MAX == 100_000
    monkeypatch.setattr("gangline_tracker.views.runs.LEFT_MAX", 2)
    runs = Runs(T0, limit=1)
    for name in ("a", "b", "c", "d"):
        runs.note(step(9, run=name), T0)
        one(runs, T0)
    runs.note(step(8, run="b"), T0)
    assert runs.due(T0) == []
    runs.note(step(8, run="a"), T0)
    assert one(runs, T0).step == 8, "the first forgotten one is no longer known"


def test_a_report_is_done_once_its_progress_is_given_out_whatever_the_clock_says() -> None:
    runs = Runs(T0)
    runs.note(step(1), T0)
    assert (runs.noted(), runs.done()) == (1, 0)
    one(runs, T0)
    assert runs.done() == 1
    runs.note(step(1), T0)  # nothing new
    assert (runs.noted(), runs.done()) == (2, 2)
    runs.note(step(2), T0 + 100)
    runs.note(step(3), T0 + 200)
    runs.note(step(1, run="run-2"), T0 + 200)
    assert one(runs, T0 + 300).run_id == "run-2"
    assert (runs.noted(), runs.done()) == (5, 2)
    assert one(runs, T0 - 3_600_000).step == 3
    assert runs.done() == 5


def test_a_stall_is_said_though_the_clock_was_set_back() -> None:
    runs = Runs(T0)
    runs.note(step(1, 10), T0)
    one(runs, T0)
    back_ms = T0 - 3_600_000
    said = [(second, event) for second in range(60) for event in runs.due(back_ms + second * 1000)]
    ((second, event),) = said
    assert second * 1000 == STALL_LEAST_MS
    assert event.stalled_since is not None
    assert event.stalled_since.timestamp() * 1000 == back_ms


def test_a_stall_is_said_though_the_clock_was_set_back_before_a_restart() -> None:
    earlier = Runs(T0)
    earlier.note(step(1, 10), T0)
    event, back_ms = one(earlier, T0), T0 - 3_600_000
    runs = Runs(back_ms)
    runs.restore(event, T0)
    said = [found for second in range(60) for found in runs.due(back_ms + second * 1000)]
    assert [found.stalled_since is not None for found in said] == [True]


def test_too_many_runs_forget_the_longest_silent() -> None:
    runs = Runs(T0, limit=2)
    for name in ("a", "b", "a", "c"):
        runs.note(step(1 if name != "a" else 2, run=name), T0)
    runs.note(step(3, run="a"), T0)
    assert sorted(event.run_id for event in runs.due(T0)) == ["a", "c"]


def test_metrics_are_bounded_of_a_run_and_of_all() -> None:
    runs = Runs(T0, values=2 * METRICS_PER_STEP)
    for name in ("a", "b", "c"):
        for part in range(3):
            many = {f"m{part}-{at}": 1.0 for at in range(METRICS_PER_STEP - 2)}
            runs.note(step(part, run=name, **many), T0)
    found = runs.due(T0)
    assert [event.run_id for event in found] == ["b", "c"]
    assert all(len(event.metrics) == METRICS_PER_STEP for event in found)


@pytest.mark.parametrize("value", [METRIC_MAX, -METRIC_MAX, 0.0])
def test_no_value_that_steps_may_have_ends_it(value: float) -> None:
    runs = Runs(T0)
    event = step(1, 500, tokens_per_s=value, step_s=value, data_wait_s=value)
    for times in ((0,) * 500, (253_402_300_799,) * 500, tuple(range(500, 0, -1))):
        runs.note(event.model_copy(update={"time_ms": times, "step": tuple(range(1, 501))}), T0)
        for found in runs.due(T0):
            RunProgress.decode(found.encode())
