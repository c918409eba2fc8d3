"""Stacks of real processes, as py-spy reads them."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent
from typing import Never

import psutil
import pytest

from gangline_worker.agent.decide.keys import GangKey, RankKey
from gangline_worker.agent.runtime.stacks import take_stacks

RANK = RankKey(GangKey("job", 1), 3)
STUCK = dedent("""
    import threading, time
    copies = threading.Event()
    def waits_for_its_peers():
        copies.wait()
        print("waits", flush=True)
        time.sleep(600)
    def copies_forever():
        copies.set()
        time.sleep(600)
    threading.Thread(target=copies_forever, name="copier", daemon=True).start()
    waits_for_its_peers()
""")


@contextmanager
def start(command: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def session(command: Sequence[str]) -> Iterator[int]:
    """The pid of a process in a session of its own that has written its first line."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            yield process.pid
        finally:
            os.killpg(process.pid, signal.SIGKILL)


@contextmanager
def answering(answer: str) -> Iterator[subprocess.Popen[bytes]]:
    with start([sys.executable, "-c", "import sys; print(sys.argv[1])", answer]) as process:
        yield process


def test_a_frozen_process_shows_all_its_threads_the_main_one_first():
    with session([sys.executable, "-c", STUCK]) as pid:
        os.kill(pid, signal.SIGSTOP)
        os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)

        (found,) = take_stacks(start, {RANK: pid}, [])

        assert psutil.Process(pid).status() == psutil.STATUS_STOPPED
    assert (found.rank, found.pid, found.state, found.missing) == (RANK, pid, "stopped", None)
    lines = found.text.splitlines()
    assert lines[0] == f"process {pid}, stopped"
    assert lines[1].startswith("thread MainThread")
    heads = [line.partition(",")[0] for line in lines]
    second = heads.index("thread copier")
    assert any(line.startswith("  waits_for_its_peers (<string>:") for line in lines[2:second])
    assert any(line.startswith("  copies_forever (<string>:") for line in lines[second:])


def test_what_a_shell_line_started_is_found():
    with session(["/bin/sh", "-c", '"$0" -c "$1"; true', sys.executable, STUCK]) as pid:
        (found,) = take_stacks(start, {RANK: pid}, [])
    assert found.pid == pid
    assert "  waits_for_its_peers (<string>:" in found.text
    assert found.missing is None


def test_what_is_no_python_process_is_told_with_its_state():
    with session(["/bin/sh", "-c", "echo; read never < /dev/zero"]) as pid:
        os.kill(pid, signal.SIGSTOP)
        os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)
        (found,) = take_stacks(start, {RANK: pid}, [])
    assert (found.state, found.text) == ("stopped", "")
    assert found.missing == f"process {pid}, stopped: it is no Python process"


def test_secrets_do_not_stand_in_stacks():
    frame = {"name": "log_in_hunter2hunter2", "filename": "/work/hunter2hunter2.py", "line": 1}
    answer = json.dumps([{"thread_name": "MainThread", "frames": [frame]}])
    (found,) = take_stacks(lambda _: answering(answer), {RANK: os.getpid()}, ["hunter2hunter2"])
    assert "  log_in_[redacted] (/work/[redacted].py:1)" in found.text.splitlines()


@pytest.mark.parametrize("answer", ["no JSON", json.dumps([{"frames": "none"}])])
def test_an_answer_that_cannot_be_read_is_told(answer: str):
    (found,) = take_stacks(lambda _: answering(answer), {RANK: os.getpid()}, [])
    assert found.text == ""
    assert "py-spy's answer cannot be read" in (found.missing or "")


def test_endless_recursion_is_cut_short(tmp_path: Path):
    frames = [{"name": "again", "filename": "a.py", "line": 2}] * 1000
    answer = json.dumps([{"thread_name": f"t{n}", "frames": frames} for n in range(30)])
    (tmp_path / "answer").write_text(answer)
    (found,) = take_stacks(
        lambda _: start(["cat", str(tmp_path / "answer")]), {RANK: os.getpid()}, []
    )
    lines = found.text.splitlines()
    assert lines[2:62] == ["  again (a.py:2)"] * 60
    assert lines[62] == "  ... 940 more"
    assert len(found.text) <= 32_768


def test_a_dump_that_takes_too_long_is_given_up():
    never = [sys.executable, "-c", "import time; time.sleep(600)"]
    (found,) = take_stacks(lambda _: start(never), {RANK: os.getpid()}, [], limit_s=0.1)
    assert found.text == ""
    assert "py-spy took too long" in (found.missing or "")


def test_a_machine_that_starts_no_process_any_more_tells_the_state_alone():
    def refuse(_: Sequence[str]) -> Never:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    (found,) = take_stacks(refuse, {RANK: os.getpid()}, [])
    assert (found.text, found.pid) == ("", os.getpid())
    assert "py-spy cannot be started: Resource temporarily unavailable" in (found.missing or "")
