"""The watchdog notes what hangs before the process ends, and blames no input for a lost bus."""

from __future__ import annotations

import faulthandler
import os
import threading
from types import FrameType

import pytest

from gangline_bus.ports import BusUnavailable
from gangline_service import watchdog
from gangline_service.watchdog import Watchdog


class Loop:
    """A loop whose bus may be lost; it keeps the input that it was to blame."""

    def __init__(self, *, lost: bool = False) -> None:
        self.lost = lost
        self.blamed: list[str] = []

    def check_connection(self) -> None:
        if self.lost:
            raise BusUnavailable("lost")

    def blame_hang(self, frame: FrameType | None) -> None:
        self.blamed.append("" if frame is None else frame.f_code.co_name)


def hang(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cycle that takes longer than the watchdog lets it."""
    monkeypatch.setattr(watchdog, "HANG_LIMIT_S", -1.0)
    monkeypatch.setattr(watchdog, "LOST_LIMIT_S", -1.0)
    monkeypatch.setattr(watchdog, "LOOK_EVERY_S", 0.01)
    ended = threading.Event()
    with Watchdog(end=ended.set).over(loop):
        assert ended.wait(30.0)


def test_a_cycle_that_hangs_is_noted_with_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop()
    hang(loop, monkeypatch)
    assert len(loop.blamed) == 1
    assert loop.blamed[0] in {"hang", "wait"}  # this thread's innermost function


def test_the_stacks_of_all_threads_are_shown(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    # In a process without the threads of other tests: faulthandler shows at most 100.
    child = os.fork()
    if child == 0:
        hang(Loop(), monkeypatch)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    shown = capfd.readouterr().err
    assert "most recent call first" in shown
    assert " in hang\n" in shown
    assert " in _watch\n" in shown


def test_a_lost_bus_is_nobody_s_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop(lost=True)
    hang(loop, monkeypatch)
    assert loop.blamed == []


def test_a_thread_that_keeps_the_lock_is_ended_by_a_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    timers: list[tuple[str, object]] = []
    monkeypatch.setattr(
        faulthandler,
        "dump_traceback_later",
        lambda limit_s, **ending: timers.append(("set", (limit_s, ending))),
    )
    monkeypatch.setattr(
        faulthandler, "cancel_dump_traceback_later", lambda: timers.append(("cancelled", None))
    )
    with Watchdog(end=lambda: None).over(Loop()):
        assert timers == [("set", (watchdog.DEAF_LIMIT_S, {"exit": True}))]
    assert timers[1:] == [("cancelled", None)]
    assert watchdog.DEAF_LIMIT_S > watchdog.HANG_LIMIT_S
