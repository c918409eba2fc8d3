"""Hostile ranks neither signal, trace, starve nor outlive: other processes are safe from them.

The control is the same act on the rank's own things, so an attack that could not work at all
would fail its test too. What needs a stronger level than this machine has is skipped; see
`support.fixtures.isolation`.
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import psutil

from gangline_schemas.events.scheduling import GangAllocated, ReleaseReason
from gangline_schemas.events.workers import ExitReason
from gangline_schemas.isolation import Isolation
from support.fixtures.isolation import PROCESSES, SLOTS, THEIRS, Stand, Victim
from support.harnesses.node import NodeHarness, alive
from support.waiting import until


def test_2_no_signal_reaches_another_team_or_the_agent(stand: Stand, victim: Victim) -> None:
    assert stand.harness.agent is not None
    others = [victim.pid, stand.harness.agent.pid]
    found = stand.report(
        f"""
        import signal, subprocess
        own = subprocess.Popen(["sleep", "60"])
        os.kill(own.pid, signal.SIGTERM)
        seen = [int(name) for name in os.listdir("/proc") if name.isdigit()]
        mine = {{os.getpid(), own.pid}}
        tell(
            own=own.wait(),
            one=[attempt(os.kill, pid, signal.SIGTERM) for pid in {others!r}],
            group=[attempt(os.killpg, pid, signal.SIGTERM) for pid in {others!r}],
            # Of the rest it is only asked whether it may: nobody is hurt should this test fail.
            asked=[attempt(os.kill, pid, 0) for pid in seen if pid not in mine],
        )
        """,
        victim,
    )
    assert found["own"] == -15
    refused = {"ProcessLookupError", "PermissionError"}
    assert isinstance(found["one"], list)
    assert isinstance(found["group"], list)
    assert isinstance(found["asked"], list)
    assert {*found["one"], *found["group"], *found["asked"]} <= refused


def test_3_nobody_else_is_traced_nor_is_his_memory_read(stand: Stand, victim: Victim) -> None:
    found = stand.report(
        """
        import ctypes, subprocess
        libc = ctypes.CDLL(None)
        own = subprocess.Popen(["sleep", "60"])
        def attach(pid):
            return libc.ptrace(16, pid, None, None)
        def memory(pid):
            return open(f"/proc/{pid}/mem", "rb").readable()
        tell(
            own=[attach(own.pid), memory(own.pid)],
            theirs=[attach(victim["pid"]), attempt(memory, victim["pid"])],
        )
        own.kill()
        """,
        victim,
    )
    assert found["own"] == [0, True]
    assert isinstance(found["theirs"], list)
    assert found["theirs"][0] == -1
    assert found["theirs"][1] in {"FileNotFoundError", "PermissionError"}


def test_4_a_fork_bomb_fills_its_own_room_alone(stand: Stand, victim: Victim) -> None:
    bomb = stand.start(
        f"""
        import signal
        def fork():
            pid = os.fork()
            if pid == 0:
                signal.pause()
            return pid
        children = []
        try:
            while len(children) < {PROCESSES + 50}:
                children.append(fork())
        except BlockingIOError:
            pass
        tell(children=len(children))
        signal.pause()
        """
    )
    stand.harness.wait(lambda: bool(stand.lines(bomb.job_id)))
    children = json.loads(stand.lines(bomb.job_id)[0])["children"]
    assert 50 < children < PROCESSES
    # While it stands there, another team forks as it likes, and the agent starts ranks.
    found = stand.report(
        """
        def child():
            return os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0)[1]
        tell(own=[child() for _ in range(20)])
        """,
        victim,
        team=THEIRS,
        slot=2,
    )
    assert found["own"] == [0] * 20
    whole = psutil.Process(stand.pid(bomb.job_id)).children(recursive=True)
    assert len(whole) == children
    stand.harness.release(bomb, ReleaseReason.CANCELLED)
    assert stand.exit(bomb.job_id).reason is ExitReason.FENCED
    until(lambda: not any(alive(process.pid) for process in whole), "a piece of it lives on")


def test_5_a_memory_bomb_ends_at_its_share(stand: Stand) -> None:
    stand.needs(Isolation.USER)
    share = int(stand.node.memory_gb / SLOTS * 2**30)
    found = stand.report(
        f"""
        import mmap
        def take(size):  # as malloc would; untouched, so that nobody else suffers if it is given
            return len(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
        own = attempt(take, {share // 2})
        tell(own=own, above=attempt(take, {share + 2**26}), after=attempt(take, {2**20}))
        """
    )
    assert found == {"own": str(share // 2), "above": "OSError", "after": str(2**20)}


def test_5_a_bomb_of_shared_memory_ends_with_its_rank_and_nobody_elses(
    stand: Stand, victim: Victim
) -> None:
    stand.needs(Isolation.LIMITS)
    share = int(stand.node.memory_gb / SLOTS * 2**30)
    other = stand.start("import time; time.sleep(600)", slot=2)
    innocent = stand.pid(other.job_id)
    bomb = stand.start(
        f"""
        def fill(size):
            file = os.memfd_create("bomb")
            for _ in range(size // 2**24):
                os.write(file, bytes(2**24))
            return size
        tell(own=fill({share // 4}))
        fill({share})
        tell(own="all of it")
        """
    )
    exited = stand.exit(bomb.job_id)
    assert [json.loads(line) for line in stand.lines(bomb.job_id)] == [{"own": share // 4}]
    assert (exited.reason, exited.signal) == (ExitReason.FAILED, signal.SIGKILL)
    assert exited.out_of_memory
    stand.harness.release(bomb, ReleaseReason.FAILED)
    assert alive(innocent)
    os.kill(innocent, signal.SIGKILL)
    assert not stand.exit(other.job_id).out_of_memory, "it was not killed for another's memory"
    stand.harness.release(other, ReleaseReason.FAILED)


DAEMON = """
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for descriptor in (0, 1, 2):  # holds on to nothing, and names nobody
            os.dup2(os.open("/dev/null", os.O_RDWR), descriptor)
        os.execve("/bin/sleep", ["sleep", os.environ["SECONDS"]], {})
    os._exit(0)
os.wait()
"""


def daemon_of(stand: Stand, script: str) -> tuple[GangAllocated, int]:
    """A gang that runs this, and the pid of the daemon that it begins."""
    seconds = str(98_000_000 + os.getpid() * 10 + next(stand.numbers))

    def found() -> list[int]:
        running = psutil.process_iter(["cmdline"])
        return [item.pid for item in running if item.info["cmdline"] == ["sleep", seconds]]

    gang = stand.start(script, env={"SECONDS": seconds})
    until(lambda: bool(found()), "it never began")
    (daemon,) = found()
    return gang, daemon


def test_6_no_daemon_is_left_behind(stand: Stand) -> None:
    stand.needs(Isolation.NAMESPACES)
    gang, daemon = daemon_of(stand, DAEMON)
    assert stand.exit(gang.job_id).reason is ExitReason.FINISHED
    stand.harness.release(gang, ReleaseReason.SUCCEEDED)
    until(lambda: not alive(daemon), "the daemon outlived its gang")


def test_nothing_of_a_room_outlives_a_killed_agent(open_folder: Path, kafka_bootstrap: str) -> None:
    place = open_folder / "second"
    place.mkdir()
    with NodeHarness(place, kafka_bootstrap, GANGLINE_ISOLATION="auto") as harness:
        stand = Stand(harness, harness.start_agent())
        stand.needs(Isolation.NAMESPACES)
        gang, daemon = daemon_of(stand, DAEMON + "import time; time.sleep(600)")
        rank = stand.pid(gang.job_id)
        assert alive(daemon)
        assert alive(rank)
        harness.kill_agent()
        until(lambda: not (alive(daemon) or alive(rank)), "something outlived the agent")
