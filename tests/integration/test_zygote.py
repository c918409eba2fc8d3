"""Ranks that a zygote forks: what they see is what a fresh interpreter sees."""

from __future__ import annotations

import array
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from gangline_worker.agent.launcher import Launch, Launcher, become_subreaper
from gangline_worker.agent.log_lines import LogBatcher
from gangline_worker.agent.model import GangKey, RankExited, RankKey
from gangline_worker.agent.zygote import TOKEN_CHARS, ZygoteRequest
from gangline_worker.agent.zygote_host import ForkedRank, ZygoteHost, warm_arguments
from node_scene import alive, until

PROBE = """
    import atexit, json, os, resource, signal, sys, threading, uuid
    atexit.register(lambda: print("at exit", flush=True))
    import random
    hidden = {"GANGLINE_RANK_TOKEN", "LC_CTYPE"}
    print(json.dumps({
        "argv": sys.argv,
        "path": sys.path,
        "name": __name__,
        "file": __file__,
        "cwd": os.getcwd(),
        "environment": {k: v for k, v in os.environ.items() if k not in hidden},
        "session": os.getsid(0) == os.getpid(),
        "parent": os.getppid(),
        "umask": os.umask(0),
        "signals": [str(signal.getsignal(n)) for n in range(1, 20) if n not in (9, 19)],
        "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
        "limits": resource.getrlimit(resource.RLIMIT_NOFILE),
        "threads": threading.active_count(),
        "files": sorted(int(n) for n in os.listdir("/proc/self/fd") if int(n) < 3),
        "oom": open("/proc/self/oom_score_adj").read(),
        "buffered": sys.stdout.write_through,
        "warm": "torch" in sys.modules,
        "optimize": sys.flags.optimize,
    }, sort_keys=True))
    print("to stderr", file=sys.stderr)
"""


@dataclass
class Ranks:
    """Ranks by number, each started warm or cold, and what they wrote."""

    folder: Path
    zygote: ZygoteHost
    lines: dict[int, list[str]] = field(default_factory=dict)
    exits: dict[int, RankExited] = field(default_factory=dict)
    _ended: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.warm = Launcher(self._exited, self.zygote)
        self.cold = Launcher(self._exited)

    def start(self, rank: int, command: list[str], *, warm: bool = True, **environment: str) -> int:
        lines = self.lines.setdefault(rank, [])
        logs = LogBatcher(
            frozenset(),
            lambda _, batch: lines.extend(line.text for line in batch),
            lambda: time.time_ns() // 1_000_000,
        )
        found = {
            "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
            "HOME": str(self.folder),
            "LANG": "C.UTF-8",
            "PYTHONUNBUFFERED": "1",
            "OMP_NUM_THREADS": "1",
            "GANGLINE_AGENT_SOCKET": str(self.folder / "socket"),
            "GANGLINE_RANK_TOKEN": f"{rank:0{TOKEN_CHARS}d}",
            **environment,
        }
        key = RankKey(GangKey("job", 1), rank)
        launch = Launch(key, tuple(command), found, self.folder)
        return (self.warm if warm else self.cold).spawn(launch, logs)

    def end(self, rank: int) -> RankExited:
        until(lambda: rank in self.exits)
        return self.exits[rank]

    def _exited(self, exited: RankExited) -> None:
        self.exits[exited.rank.rank] = exited


@pytest.fixture(scope="module")
def zygote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZygoteHost]:
    """Of an agent that nohup started in the background of a shell."""
    ignored = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in ignored}
    become_subreaper()
    host = ZygoteHost(tmp_path_factory.mktemp("sockets"))
    host.start()
    until(host.is_ready, "the zygote never became ready")
    yield host
    host.stop()
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def ranks(zygote: ZygoteHost, tmp_path: Path) -> Ranks:
    return Ranks(tmp_path, zygote)


def write(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(dedent(text))


@pytest.mark.parametrize(
    "command", [["python", "-m", "job.main", "-x", "1"], ["python3", "sub/go.py", "y"]]
)
def test_a_forked_rank_sees_what_a_fresh_one_sees(ranks: Ranks, command: list[str]) -> None:
    write(ranks.folder, {"job/__init__.py": "", "job/main.py": PROBE, "sub/go.py": PROBE})
    ranks.start(0, command, COLOUR="green")
    ranks.start(1, command, warm=False, COLOUR="green")

    assert [(ranks.end(rank).code, ranks.end(rank).signal) for rank in (0, 1)] == [(0, None)] * 2
    warm, cold = (
        json.loads(next(line for line in ranks.lines[rank] if line.startswith("{")))
        for rank in (0, 1)
    )
    assert warm.pop("warm")
    assert not cold.pop("warm")
    assert warm == cold
    assert warm["parent"] == os.getpid()
    for rank in (0, 1):
        assert {"to stderr", "at exit"} < set(ranks.lines[rank])


def test_it_is_a_fork_and_random_numbers_differ(ranks: Ranks) -> None:
    write(
        ranks.folder,
        {
            "draw.py": """
        import sys
        assert "torch" in sys.modules, "not warm"
        import random, torch
        import numpy
        print(random.random(), numpy.random.random(), torch.get_num_threads())
    """
        },
    )
    for rank, threads in enumerate((1, 1, 2)):
        ranks.start(rank, ["python", "draw.py"], OMP_NUM_THREADS=str(threads))
    assert [ranks.end(rank).code for rank in range(3)] == [0, 0, 0], ranks.lines
    drawn = [ranks.lines[rank][0].split() for rank in range(3)]
    assert len({line[0] for line in drawn}) == 3
    assert len({line[1] for line in drawn}) == 3
    assert [line[2] for line in drawn] == ["1", "1", "2"]


@pytest.mark.parametrize(
    ("body", "code", "words"),
    [
        ("raise ValueError('no such corpus')", 1, "ValueError: no such corpus"),
        ("import sys; sys.exit(7)", 7, ""),
        ("import sys; sys.exit('bad input')", 1, "bad input"),
        ("def broken(:\n    pass", 1, "SyntaxError"),
        ("import os; os._exit(9)", 9, ""),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -9, ""),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", -15, ""),
        ("import threading, time\nthreading.Thread(target=time.sleep, args=(0.2,)).start()", 0, ""),
    ],
)
def test_it_ends_as_a_fresh_one(ranks: Ranks, body: str, code: int, words: str) -> None:
    write(ranks.folder, {"go.py": body})
    for rank, warm in enumerate((True, False)):
        ranks.start(rank, ["python", "go.py"], warm=warm)
        exited = ranks.end(rank)
        assert (exited.code if exited.signal is None else -exited.signal) == code
        assert words in exited.last_words
    warm_lines, cold_lines = ranks.lines[0], ranks.lines[1]
    assert [line for line in warm_lines if "File" in line] == [
        line for line in cold_lines if "File" in line
    ], "the same frames are shown"


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["nowhere.py"], 2),
        (["job"], 1),
        (["-m", "nowhere"], 1),
        (["-m", "job.nowhere"], 1),
        (["-m", "job"], 1),
        (["-m", "job.bad", "x"], 1),
    ],
)
def test_what_cannot_run_fails_in_the_words_of_a_fresh_one(
    ranks: Ranks, arguments: list[str], code: int
) -> None:
    write(ranks.folder, {"job/__init__.py": "", "job/bad.py": "import sys; int(sys.argv[1])"})
    for rank, warm in enumerate((True, False)):
        ranks.start(rank, ["python", *arguments], warm=warm)
        assert ranks.end(rank).code == code
    assert ranks.lines[0] == ranks.lines[1]
    assert len(ranks.lines[0]) >= 1


@pytest.mark.parametrize(
    ("files", "environment"),
    [
        ({}, {"PYTHONPATH": "/nowhere"}),
        ({}, {"LD_PRELOAD": ""}),
        ({"yaml.py": ""}, {}),
        ({"torch/__init__.py": ""}, {}),
    ],
    ids=["a variable of the interpreter", "of the loader", "own module", "own package"],
)
def test_what_only_a_fresh_interpreter_does_right_starts_cold(
    ranks: Ranks, files: dict[str, str], environment: dict[str, str]
) -> None:
    write(ranks.folder, {"go.py": "import sys; print('torch' in sys.modules)", **files})
    ranks.start(0, ["python", "go.py"], **environment)
    assert ranks.end(0).code == 0
    assert ranks.lines[0] == ["False"]


def test_all_that_a_forked_rank_started_ends_with_it(ranks: Ranks) -> None:
    """By its token, which stands where the kernel shows the environment of what it forks."""
    write(
        ranks.folder,
        {
            "go.py": """
        import os, subprocess, time
        child = subprocess.Popen(["sleep", "600"], start_new_session=True)
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                time.sleep(600)
            os._exit(0)
        os.wait()
        print(child.pid, flush=True)
        time.sleep(600)
    """
        },
    )
    bystander = ranks.start(1, ["python", "go.py"])
    pid = ranks.start(0, ["python", "go.py"])
    until(lambda: all(len(ranks.lines[rank]) == 1 for rank in (0, 1)))
    mine, others = tokens(0), tokens(1)
    assert pid in mine
    assert bystander in others
    assert len(mine) == len(others) == 3
    ranks.warm.kill(RankKey(GangKey("job", 1), 0))
    assert ranks.end(0).signal == signal.SIGKILL
    until(lambda: not any(alive(found) for found in mine))
    assert all(alive(found) for found in others)
    ranks.warm.kill(RankKey(GangKey("job", 1), 1))
    ranks.end(1)


def tokens(rank: int) -> set[int]:
    """Processes whose environment, as the kernel shows it, has a rank's token."""
    wanted = f"GANGLINE_RANK_TOKEN={rank:0{TOKEN_CHARS}d}".encode()
    found = set()
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and wanted in (entry / "environ").read_bytes().split(b"\0"):
                found.add(int(entry.name))
        except OSError:
            continue
    return found


FORKS_FAIL_TWICE = """
    import os, sys
    from gangline_worker.agent import zygote
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
    request = ZygoteRequest(("-m", "this"), {}, str(tmp_path)).encode()
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


def test_no_rank_is_the_group_of_the_agent_itself() -> None:
    with Path(os.devnull).open("rb") as nothing, pytest.raises(ValueError, match="0 is no process"):
        ForkedRank(0, nothing, nothing, -1)


def test_a_dead_zygote_takes_no_rank_along_and_is_replaced(tmp_path: Path) -> None:
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
        assert host.pid is not None
        os.kill(host.pid, signal.SIGKILL)
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


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        (("python", "-m", "a.b", "-m"), ("-m", "a.b", "-m")),
        (("python3", "train.py", "1"), ("train.py", "1")),
        (("python", "-c", "pass"), None),
        (("python", "-u", "train.py"), None),
        (("python", "-m"), None),
        (("python",), None),
        (("sh", "train.py"), None),
        (("/usr/bin/python3", "train.py"), None),
    ],
)
def test_which_commands_can_be_warm(
    command: tuple[str, ...], arguments: tuple[str, ...] | None
) -> None:
    assert warm_arguments(command) == arguments
