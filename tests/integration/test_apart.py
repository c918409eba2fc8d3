"""Work in a child process: its result, its errors, its end in time."""

from __future__ import annotations

import errno
import os
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gangline_service.apart import TookTooLong, WorkFailed, apart, read_answer


def children() -> set[str]:
    file = Path(f"/proc/self/task/{threading.get_native_id()}/children")
    return set(file.read_text().split())


def descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_it_is_done_in_another_process_and_leaves_none_behind() -> None:
    before = children()
    assert int(apart(lambda: str(os.getpid()).encode(), 30)) != os.getpid()
    assert apart(lambda: b"x" * 3_000_000, 30) == b"x" * 3_000_000
    assert apart(bytes, 30) == b""
    assert children() <= before


def test_a_connection_of_the_parent_ends_when_the_parent_ends_it(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    begun = tmp_path / "begun"

    def endless() -> bytes:
        begun.touch()
        while True:
            time.sleep(0.01)

    with ThreadPoolExecutor(1) as threads:
        asked = threads.submit(apart, endless, 3)
        while not begun.exists():
            assert not asked.done()
            time.sleep(0.01)
        ours.close()
        theirs.setblocking(False)
        assert theirs.recv(1) == b""
        assert isinstance(asked.exception(), TookTooLong)
    theirs.close()


def test_a_process_that_cannot_be_started_leaves_no_descriptors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_more() -> int:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(os, "fork", no_more)
    before = descriptors()
    for _ in range(3):
        with pytest.raises(WorkFailed, match="no process could be started"):
            apart(bytes, 30)
    assert descriptors() == before


def test_an_answer_that_is_cut_off_is_no_answer() -> None:
    reading, writing = os.pipe()
    os.write(writing, (10).to_bytes(8) + b"+half")
    os.close(writing)
    try:
        with pytest.raises(WorkFailed, match="the process ended"):
            read_answer(reading, time.monotonic() + 30)
    finally:
        os.close(reading)


def test_work_that_takes_too_long_is_ended() -> None:
    before = children()

    def endless() -> bytes:
        while True:
            time.sleep(0.01)

    with pytest.raises(TookTooLong, match="took too long"):
        apart(endless, 0.2)
    assert children() <= before


def test_what_it_raises_is_named_without_its_text() -> None:
    def fail() -> bytes:
        raise KeyError("a secret")

    with pytest.raises(WorkFailed, match=r"^KeyError$"):
        apart(fail, 30)


def test_work_that_dies_is_an_error() -> None:
    with pytest.raises(WorkFailed, match="the process ended"):
        apart(lambda: os._exit(3), 30)


def test_many_threads_ask_at_once() -> None:
    with ThreadPoolExecutor(8) as threads:
        asked = [threads.submit(apart, lambda n=n: b"%d" % n, 30) for n in range(16)]
    assert [int(one.result()) for one in asked] == list(range(16))
