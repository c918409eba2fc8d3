"""Rolling rates: from the newest attempt and its lowest rank, whatever comes twice or late."""

from __future__ import annotations

from gangline_schemas.events.steps import WorkerStep
from gangline_tracker.views.model import LiveRuns


def step(number: int, *, run: str = "run-1", attempt: int = 1, rank: int = 0) -> WorkerStep:
    return WorkerStep(
        run_id=run,
        team="nlp",
        attempt=attempt,
        rank=rank,
        step=(number,),
        time_ms=(number * 500,),
        metrics={"loss": (10.0 - number,), "tokens_per_s": (100.0,)},
    )


def test_rates_are_means_over_the_window() -> None:
    runs = LiveRuns(window_s=2.0, limit=10)
    for number in range(10):
        runs.note(step(number))
        runs.note(step(number))  # at least once
    (run,) = runs.current()
    assert (run.step, run.steps_per_s, run.tokens_per_s) == (9, 2.0, 100.0)
    assert (run.loss, run.mean_loss) == (1.0, 3.0)


def test_the_newest_attempt_and_its_lowest_rank_speak() -> None:
    runs = LiveRuns(window_s=60.0, limit=10)
    runs.note(step(50, attempt=1))
    runs.note(step(20, attempt=2, rank=1))
    runs.note(step(21, attempt=2, rank=0))
    runs.note(step(99, attempt=1))
    runs.note(step(99, attempt=2, rank=1))
    (run,) = runs.current()
    assert (run.attempt, run.step, run.steps_per_s) == (2, 21, None)


def test_runs_silent_for_longest_are_forgotten() -> None:
    runs = LiveRuns(window_s=60.0, limit=2)
    for name in ("a", "b", "a", "c"):
        runs.note(step(1, run=name))
    assert [run.run_id for run in runs.current()] == ["a", "c"]
