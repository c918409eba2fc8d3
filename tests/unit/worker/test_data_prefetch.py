"""Reading ahead: in order, bounded, with errors handed over, and an end."""

from __future__ import annotations

import subprocess
import sys
import threading
from contextlib import closing

import pytest

from gangline_worker.data.prefetch import Prefetcher


def test_batches_come_in_order() -> None:
    with closing(Prefetcher(str, start=6, stride=3, ahead=2)) as batches:
        assert [batches.take(position) for position in (6, 9, 12, 15)] == ["6", "9", "12", "15"]
        with pytest.raises(ValueError, match="position 18 comes next, not 24"):
            batches.take(24)
        assert batches.take(18) == "18"


def test_no_more_is_read_than_may_wait() -> None:
    read: list[int] = []
    third = threading.Event()

    def reading(position: int) -> int:
        read.append(position)
        if position == 2:
            third.set()
        return position

    with closing(Prefetcher(reading, start=0, stride=1, ahead=2)) as batches:
        assert batches.take(0) == 0
        assert third.wait(30)
        assert batches.take(1) == 1
    assert read in ([0, 1, 2], [0, 1, 2, 3])


def test_who_takes_batches_can_ask_whether_there_is_one() -> None:
    go = threading.Event()

    def read(position: int) -> int:
        assert go.wait(10.0)
        if position:
            raise OSError("gone")
        return position

    with closing(Prefetcher(read, start=0, stride=1, ahead=1)) as batches:
        assert not batches.ready(within_s=0.01)
        go.set()
        assert batches.ready(within_s=10.0)
        assert not batches.failed, "there is a batch before the error"
        assert batches.take(0) == 0
        assert batches.ready(within_s=10.0), "an error is an answer too"
        assert batches.failed


def test_an_error_comes_to_who_waits_after_what_was_good() -> None:
    def reading(position: int) -> int:
        if position == 2:
            raise OSError("the disk is gone")
        return position

    with closing(Prefetcher(reading, start=0, stride=1, ahead=4)) as batches:
        assert [batches.take(0), batches.take(1)] == [0, 1]
        for _ in range(2):
            with pytest.raises(OSError, match="the disk is gone"):
                batches.take(2)


def test_closing_ends_the_thread_and_those_that_wait() -> None:
    begun, go_on = threading.Event(), threading.Event()

    def reading(position: int) -> int:
        begun.set()
        assert go_on.wait(30)
        return position

    before = threading.active_count()
    batches = Prefetcher(reading, start=0, stride=1, ahead=1)
    assert begun.wait(30)
    ending = threading.Timer(0.0, go_on.set)
    ending.start()
    batches.close()
    ending.join()
    assert threading.active_count() == before
    assert batches.take(0) == 0  # it was ready when all ended
    with pytest.raises(RuntimeError, match="closed"):
        batches.take(1)
    with pytest.raises(ValueError, match="at least 1"):
        Prefetcher(reading, start=0, stride=1, ahead=0)


FORKS = """
import os, threading
from gangline_worker.data.fetching import Fetching

class Store:
    def get_range(self, *_):
        gate.wait()
        return b"x"

gate, fetching = threading.Event(), Fetching(Store())
fetching.begin(7, "shard", 0, 1)
child = os.fork()
if not child:
    print(7 in fetching, fetching.take(7), flush=True)
    os._exit(0)
os.waitpid(child, 0)
gate.set()
print(fetching.take(7))
"""


def test_a_forked_child_waits_for_nothing_that_its_parent_fetches() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", FORKS], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.returncode, ended.stdout) == (0, "False None\nb'x'\n"), ended.stderr
