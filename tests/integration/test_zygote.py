"""Ranks that a zygote forks: what they see is what a fresh interpreter sees."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest

from gangline_worker.agent.decide.effects import OpenStore
from gangline_worker.agent.decide.inputs import StoreFailed, StoreOpened
from gangline_worker.agent.decide.keys import GangKey, RankKey
from gangline_worker.agent.rendezvous.store_host import StoreHost
from gangline_worker.agent.runtime.launcher import become_subreaper
from gangline_worker.agent.warm.zygote_host import ZygoteHost
from support.harnesses.node import alive, free_port
from support.harnesses.warm_ranks import PROBE, Ranks, program, token_of, write
from support.waiting import until


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


ASKS = """
    import os
    from gangline_worker.agent.warm import warm_up
    warm_up.import_modules()
    os.write(2, b"imported\\n")
    warm_up.take_a_step()
    os.write(2, b"step\\n")
    import torch
    torch.cuda.is_available()
"""


def test_its_step_does_not_look_for_the_driver_of_gpus() -> None:
    """Where there is one, its answer would leave a thread, and no rank could be forked."""
    asked = subprocess.run(
        [sys.executable, "-c", dedent(ASKS)],
        env={**os.environ, "LD_DEBUG": "libs", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=True,
    ).stderr
    _, _, after = asked.partition("imported\n")
    step, _, later = after.partition("step\n")
    assert "find library=libcuda.so" in later
    assert "find library=libcuda.so" not in step


@pytest.fixture
def ranks(zygote: ZygoteHost, tmp_path: Path) -> Ranks:
    return Ranks(tmp_path, zygote)


@pytest.mark.parametrize(
    "command", [["python", "-m", "job.main", "-x", "1"], ["python3", "sub/go.py", "y"]]
)
def test_a_forked_rank_sees_what_a_fresh_one_sees(ranks: Ranks, command: list[str]) -> None:
    write(ranks.folder, {"job/__init__.py": "", "job/main.py": PROBE, "sub/go.py": PROBE})
    ranks.start(0, command, COLOUR="green")
    ranks.start(1, command, warm=False, COLOUR="green")

    warm, cold = ranks.probed(0), ranks.probed(1)
    assert warm.pop("warm")
    assert not cold.pop("warm")
    assert warm == cold
    assert warm["parent"] == os.getpid()


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
        ("import sys; sys.exit(300)", 44, ""),
        ("import atexit; atexit.register(lambda: 1 / 0)", 0, "ZeroDivisionError"),
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


def test_what_a_rank_left_in_buffers_is_written_at_its_end(ranks: Ranks) -> None:
    write(
        ranks.folder,
        {
            "go.py": """
        import atexit, ctypes, sys, threading
        kept = [open(sys.argv[1], "w")]
        kept.append(kept)
        kept[0].write("text")
        threading.Thread(target=lambda: kept[0].write(" of a thread")).start()
        atexit.register(lambda: kept[0].write(" at the end"))
        ctypes.CDLL(None).printf(b"of C\\n")
    """
        },
    )
    for rank, warm in enumerate((True, False)):
        ranks.start(rank, ["python", "go.py", f"out-{rank}"], warm=warm)
        assert ranks.end(rank).code == 0
        assert (ranks.folder / f"out-{rank}").read_text() == "text of a thread at the end"
        assert ranks.lines[rank] == ["of C"]


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
        ({}, {"TORCHDYNAMO_DISABLE": "1"}),
        ({}, {"CUDA_VISIBLE_DEVICES": "0,1"}),
        ({"yaml.py": ""}, {}),
        ({"torch/__init__.py": ""}, {}),
    ],
    ids=[
        *("a variable of the interpreter", "of the loader", "of a library"),
        *("GPUs", "own module", "own package"),
    ],
)
def test_what_only_a_fresh_interpreter_does_right_starts_cold(
    ranks: Ranks, files: dict[str, str], environment: dict[str, str]
) -> None:
    write(ranks.folder, {"go.py": "import sys; print('torch' in sys.modules)", **files})
    ranks.start(0, ["python", "go.py"], **environment)
    assert ranks.end(0).code == 0
    assert ranks.lines[0] == ["False"]


def test_a_zygote_sees_no_gpu_whatever_the_machine_has(zygote: ZygoteHost) -> None:
    """Its warming step has torch ask the driver, and a fork cannot ask again."""
    (pid,) = zygote.pids
    given = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    assert b"CUDA_VISIBLE_DEVICES=" in given


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
    wanted = f"GANGLINE_RANK_TOKEN={token_of(rank)}".encode()
    found = set()
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and wanted in (entry / "environ").read_bytes().split(b"\0"):
                found.add(int(entry.name))
        except OSError:
            continue
    return found


def answers_at(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
        return True
    return False


def test_the_store_server_is_forked_too_and_another_one_follows_it(zygote: ZygoteHost) -> None:
    answers: list[StoreOpened | StoreFailed] = []
    gang, port = GangKey("job", 1), free_port()
    host = StoreHost(answers.append, zygote)
    host.start()
    first = host.pid
    assert first is not None
    try:
        host.open(OpenStore(gang, "127.0.0.1", port), None, (), ranks=1)
        until(lambda: answers == [StoreOpened(gang)], f"{answers}")
        assert answers_at(port)
        assert b"agent.warm.zygote" in program(first)
        place = Path(f"/proc/{first}")
        assert b"\0PPid" not in (place / "status").read_bytes()
        assert f"PPid:\t{os.getpid()}\n" in (place / "status").read_text()
        # It is not a rank, which a guard kills at the end of a lease and the kernel before others.
        assert b"GANGLINE_AGENT_SOCKET=." in (place / "environ").read_bytes()
        own = Path("/proc/self/oom_score_adj").read_text()
        assert (place / "oom_score_adj").read_text() == own

        os.kill(first, signal.SIGKILL)

        def followed() -> bool:
            host.tick()
            return host.pid != first and answers_at(port)

        until(followed)
        assert answers == [StoreOpened(gang)], "it is told once"
        host.close(gang)
        until(lambda: not answers_at(port))
    finally:
        last = host.pid
        host.stop()
    assert last is not None
    assert not alive(last)
