"""Reports of ranks under torchrun: which attempt has settled, and when a later one was back."""

from __future__ import annotations

from bench.torchrun_harness import SETTLED_STEPS, RankLine, first_step, settled, told

STARTED = '{"attempt": 0, "time_s": 10.0, "pid": 7, "step": 0, "model_import_s": 0.3}\n'
STEP = '{"attempt": 0, "time_s": 11.5, "step": 1}\n'


def test_a_line_that_is_half_written_is_left_out() -> None:
    lines = told(STARTED + STEP + STEP[:20])
    assert lines == [RankLine(0, 10.0, 0, pid=7, model_import_s=0.3), RankLine(0, 11.5, 1)]
    assert told(STARTED[:5]) == []


def test_an_attempt_has_settled_by_its_own_steps() -> None:
    before = [RankLine(0, 1.0, step) for step in range(SETTLED_STEPS)]
    resumed = [
        RankLine(1, 9.0, 10, pid=8),
        *(RankLine(1, 9.0, 11 + i) for i in range(SETTLED_STEPS)),
    ]
    assert settled(before, 0)
    assert not settled([*before, *resumed[:-1]], 1)
    assert settled([*before, *resumed], 1)


def test_back_is_the_first_step_of_a_later_attempt() -> None:
    """Attempts that started and died before a step do not count, nor does a start."""
    lines = [RankLine(0, 5.0, 12), RankLine(1, 8.0, 10, pid=8), RankLine(2, 9.0, 10, pid=9)]
    assert first_step(lines, after=0) is None
    assert first_step([*lines, RankLine(2, 9.5, 11), RankLine(2, 9.8, 12)], after=0) == RankLine(
        2, 9.5, 11
    )
