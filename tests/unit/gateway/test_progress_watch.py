"""A live view that publishes nothing, though steps come, is silent; anything else is well."""

from __future__ import annotations

from gangline_gateway.progress_watch import SILENT_S, ProgressWatch


def test_steps_without_progress_are_a_silence_after_a_while() -> None:
    watch = ProgressWatch()
    assert watch.silent_s(1000.0) == 0.0, "nothing runs"
    watch.stepped(1000.0)
    watch.stepped(1010.0)
    assert watch.silent_s(1000.0 + SILENT_S - 1) == 0.0
    assert watch.silent_s(1000.0 + SILENT_S) == SILENT_S
    watch.answered()
    assert watch.silent_s(2000.0) == 0.0
    watch.stepped(2000.0)
    assert watch.silent_s(2001.0) == 0.0
