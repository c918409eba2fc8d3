"""A zygote whose forks fail or that dies takes no rank along, and is replaced."""

from __future__ import annotations

import array
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from gangline_worker.agent.rendezvous.store_host import StoreHost
from gangline_worker.agent.runtime.launcher import become_subreaper
from gangline_worker.agent.warm import zygote_host
from gangline_worker.agent.warm.rank import WarmRequest
from gangline_worker.agent.warm.zygote_host import ZygoteHost
from support.harnesses.warm_ranks import Ranks, program, write
from support.waiting import until

FORKS_FAIL_TWICE = """
    import os, sys
    from gangline_worker.agent.warm import warm_up, zygote
    warm_up.import_modules = warm_up.take_a_step = lambda: None  # no rank is let through its gate
    real, parent, asked = os.fork, os.getpid(), 0
    def fork():
        global asked
        asked += os.getpid() == parent
        if asked == 1 or (asked == 2 and os.getpid() != parent):
            raise BlockingIOError(11, "no more processes")
        return real()
    os.fork = fork
    zygote.main()
"""


def test_a_fork_that_fails_is_refused_and_the_next_one_is_made(tmp_path: Path) -> None:
    """The first request fails at its first fork, the second one in the process between."""
    become_subreaper()
    ours, theirs = socket.socketpair()
    program = [sys.executable, "-c", dedent(FORKS_FAIL_TWICE), str(theirs.fileno())]
    request = WarmRequest(("-m", "this"), {}, str(tmp_path)).encode()
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}
    handed = (theirs.fileno(),)
    with ours, subprocess.Popen(program, pass_fds=handed, env=one_thread) as zygote:
        theirs.close()
        try:
            assert answer(ours) == {"ready": True}
            for why in ("no more processes", "the process between"):
                assert why in ask(ours, request)["refused"]
            pid = ask(ours, request)["pid"]
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1, "its gate was closed"
        finally:
            zygote.kill()


def answer(control: socket.socket) -> dict[str, Any]:
    """The next line: it comes alone, so whole."""
    found: dict[str, Any] = json.loads(control.recv(4096))
    return found


def ask(control: socket.socket, request: bytes) -> dict[str, Any]:
    """Request a rank whose gate is closed for ever."""
    with Path(os.devnull).open("rb") as nothing:
        passed = array.array("i", [nothing.fileno()] * 3)
        control.sendmsg([request], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, passed)])
    return answer(control)


def test_a_dead_zygote_takes_no_rank_along_and_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zygote_host, "_PAUSE_S", 0.0)
    become_subreaper()
    host = ZygoteHost(tmp_path)
    host.start()
    until(host.is_ready)
    ranks = Ranks(tmp_path, host)
    write(
        tmp_path,
        {
            "go.py": """
        import sys, time
        print("torch" in sys.modules, flush=True)
        while not __import__("os").path.exists("stop"):
            time.sleep(0.05)
    """
        },
    )
    try:
        ranks.start(0, ["python", "go.py"])
        until(lambda: ranks.lines[0] == ["True"])
        os.kill(host.pids[0], signal.SIGKILL)
        ranks.start(1, ["python", "go.py"])
        until(lambda: ranks.lines[1] == ["False"], "the second one did not start cold")

        def replaced() -> bool:
            host.tick()
            return host.is_ready()

        until(replaced)
        ranks.start(2, ["python", "go.py"])
        until(lambda: ranks.lines[2] == ["True"])
        (tmp_path / "stop").touch()
        assert [ranks.end(rank).code for rank in range(3)] == [0, 0, 0]
    finally:
        host.stop()


def test_the_store_server_waits_for_a_zygote_but_not_for_a_dead_one(tmp_path: Path) -> None:
    zygote = ZygoteHost(tmp_path)
    zygote.start()
    host = StoreHost(lambda _: None, zygote)
    try:
        host.start()
        host.tick()
        assert host.pid is None
        os.kill(zygote.pids[0], signal.SIGKILL)

        def started() -> bool:
            host.tick()
            return host.pid is not None

        until(started)
        assert host.pid is not None
        until(lambda: b"agent.rendezvous.store_server" in program(host.pid or 0))
    finally:
        host.stop()
        zygote.stop()
