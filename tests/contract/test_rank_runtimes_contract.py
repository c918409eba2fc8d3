"""What every place where ranks run promises: below the agent, in pods, and by engines."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gangline_worker.agent.decide.keys import GangKey, RankKey
from gangline_worker.agent.isolation.files import Owner
from gangline_worker.agent.runtime import launcher, pod_link
from gangline_worker.agent.runtime.containers import ENGINES
from gangline_worker.agent.runtime.pod_link import PodMissing
from gangline_worker.pod_host import STALE_EXIT
from support.builders.engines import needs_engine
from support.harnesses.node import alive, python
from support.harnesses.rank_runtimes import GANG, RankRuntime
from support.waiting import until

PLACES = ["agent", "pod", "pod with namespaces", *ENGINES]


def _unshares() -> bool:
    tried = ["unshare", "--pid", "--fork", "--mount-proc", "true"]
    return bool(shutil.which("unshare")) and not subprocess.run(tried, check=False).returncode


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest) -> Iterator[RankRuntime]:
    if request.param == PLACES[2] and not _unshares():
        pytest.skip("this machine lets nobody make namespaces")
    if request.param in ENGINES:
        needs_engine(request.param)
    with (
        tempfile.TemporaryDirectory(prefix="gl-") as name,
        RankRuntime(Path(name), request.param) as made,
    ):
        yield made


def test_eight_ranks_end_with_their_codes_and_all_that_they_wrote(place: RankRuntime) -> None:
    for rank in range(8):  # the first ones end before the last ones start
        place.start(rank, ["/bin/sh", "-c", f"echo $RANK; echo e >&2; exit {rank}"], RANK=str(rank))

    for rank in range(8):
        found = place.end(rank)
        assert (found.code, found.signal) == (rank, None)
        assert sorted(place.lines[rank]) == [str(rank), "e"]


def test_long_output_arrives_to_its_last_byte(place: RankRuntime) -> None:
    place.start(0, python("print('x\\n' * 20_000, end='')\nprint('last', end='')"))

    assert place.end(0).code == 0
    assert len(place.lines[0]) == 20_001
    assert place.lines[0][-1] == "last"


@pytest.fixture
def blocked_signals() -> Iterator[None]:
    """As libraries leave them in a process: ClickHouse's engine blocks SIGPIPE."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGPIPE, signal.SIGUSR1))
    yield
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def test_no_signal_is_blocked_in_a_rank(
    blocked_signals: None,  # before the place is made
    place: RankRuntime,
) -> None:
    place.start(0, ["/bin/sh", "-c", "grep SigBlk /proc/self/status"])
    assert place.end(0).code == 0
    assert place.lines[0] == ["SigBlk:\t0000000000000000"]


def test_of_a_flood_the_middle_is_left_out_and_the_end_arrives(place: RankRuntime) -> None:
    place.start(0, ["/bin/sh", "-c", "yes | head -c 20000000; echo why >&2; printf last; exit 3"])

    found = place.end(0)
    assert (found.code, found.last_words) == (3, "why")
    assert len(place.lines[0]) < 1_000_000
    assert "last" in place.lines[0]
    assert any("are left out here" in line for line in place.lines[0])


def test_last_words_arrive_though_the_agent_gets_its_turn_late(
    place: RankRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher, "_DRAIN_S", 0.0)
    for rank in range(8):
        place.start(rank, ["/bin/sh", "-c", "echo last"])

    assert [place.end(rank).code for rank in range(8)] == [0] * 8
    assert [place.lines[rank] for rank in range(8)] == [["last"]] * 8


def test_a_rank_can_handle_sigterm_and_is_ended_by_a_kill(place: RankRuntime) -> None:
    handles = "trap 'echo saved; exit 5' TERM; echo ready; while :; do sleep 0.05; done"
    place.start(0, ["/bin/sh", "-c", handles])
    place.said(0, "ready")
    place.launcher.terminate(RankKey(GANG, 0))
    assert place.end(0).code == 5
    assert place.lines[0][-1] == "saved"

    place.start(1, ["/bin/sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.05; done"])
    place.said(1, "ready")
    place.launcher.kill(RankKey(GANG, 1))
    assert (place.end(1).code, place.end(1).signal) == (None, signal.SIGKILL)


def test_a_gangs_processes_are_known_and_since_when_they_are(place: RankRuntime) -> None:
    before_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    os.mkfifo(place.folder / "go")
    pid = place.start(0, ["/bin/sh", "-c", "sleep 600 & echo ready; read x < go"])
    place.said(0, "ready")
    assert place.launcher.gang_owns(pid, GANG)
    assert not place.launcher.gang_owns(pid, GangKey(GANG.job_id, GANG.attempt + 1))
    assert not place.launcher.gang_owns(os.getpid(), GANG)
    assert before_s <= place.launcher.begun_s(RankKey(GANG, 0))
    (place.folder / "go").write_text("x\n")
    place.end(0)
    until(lambda: place.launcher.begun_s(RankKey(GANG, 0)) == 0.0)


def test_what_a_rank_leaves_behind_is_killed(place: RankRuntime) -> None:
    os.mkfifo(place.folder / "go")
    left = "setsid sleep 600 & sleep 600 & echo ready; read x < go"
    pid = place.start(0, ["/bin/sh", "-c", left])
    place.said(0, "ready")
    found = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
    own = [one for one in found if one != pid and place.launcher.owns(one, RankKey(GANG, 0))]
    assert own, "its processes are not known as its own"
    (place.folder / "go").write_text("x\n")

    assert place.end(0).code == 0
    until(lambda: not any(alive(one) for one in own))


TRACED = """
import ctypes, os, sys, time
rank, (r, w) = os.getpid(), os.pipe()
if not os.fork():
    os.setsid()
    seized = ctypes.CDLL(None).ptrace(0x4206, rank, 0, 0)
    os.write(w, b"ok" if seized == 0 else b"no")
    time.sleep(600)
print(os.read(r, 2).decode(), flush=True)
sys.exit(3)
"""


def test_a_tracer_that_a_rank_started_does_not_hold_back_its_end(place: RankRuntime) -> None:
    place.start(0, python(TRACED))
    until(lambda: bool(place.lines[0]))
    if place.lines[0] == ["no"]:
        pytest.skip("this machine lets no process trace its parent")
    assert place.end(0).code == 3


@pytest.mark.parametrize(
    ("command", "code", "words"),
    [
        (["no-such-command"], 127, "command not found: no-such-command"),
        (["/"], 126, "cannot run /: Permission denied"),
    ],
)
def test_a_command_that_cannot_run_ends_with_its_reason(
    place: RankRuntime, command: list[str], code: int, words: str
) -> None:
    place.start(0, command)

    assert place.end(0).code == code
    assert place.lines[0] == [f"gangline: {words}"]


def test_a_rank_starts_in_its_folder_with_no_files_of_others(place: RankRuntime) -> None:
    place.start(0, python("import os; print(os.getcwd(), sorted(os.listdir('/proc/self/fd')))"))

    assert place.end(0).code == 0
    assert place.lines[0] == [f"{place.folder} ['0', '1', '2', '3']"]  # 3 reads the folder


@pytest.mark.parametrize("place", PLACES[1:], indirect=True)
class TestPods:
    """What pods promise beyond that."""

    def test_ranks_do_not_notice_a_restart_of_the_agent(self, place: RankRuntime) -> None:
        forever = "trap 'exit 6' TERM; echo ready; while :; do sleep 0.05; done"
        os.mkfifo(place.folder / "go")
        place.start(0, ["/bin/sh", "-c", forever])
        place.start(1, ["/bin/sh", "-c", "read x < go; exit 7"])
        place.said(0, "ready")
        place.launcher.pause()
        (place.folder / "go").write_text("x\n")  # it ends while no agent runs
        place.restart_agent()

        assert place.end(1).code == 7
        assert place.hosts is not None
        place.hosts.wait(GANG, [])
        place.launcher.terminate(RankKey(GANG, 0))
        assert place.end(0).code == 6

    def test_ranks_end_with_the_lease(self, place: RankRuntime) -> None:
        place.start(0, ["/bin/sh", "-c", "setsid sleep 600 & echo ready; sleep 600"])
        place.said(0, "ready")
        assert place.hosts is not None
        place.hosts.extend(0.0)

        assert place.end(0).signal == signal.SIGKILL
        if place.by_engine:  # no other agent would find it
            assert place.pods[0].wait(20) == 0
            return
        place.hosts.extend(1e12)
        place.start(1, ["true"])  # the pod lives on
        assert place.end(1).code == 0

    def test_the_end_of_a_pod_is_the_end_of_its_ranks(self, place: RankRuntime) -> None:
        pid = place.start(0, ["sleep", "600"])
        os.kill(place.host_pid(), signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)  # as the kernel does, here perhaps already
        assert place.end(0).signal == signal.SIGKILL

    def test_a_pod_whose_folders_are_not_the_agent_s_ends(self, place: RankRuntime) -> None:
        if not place.unshared:
            pytest.skip("it has the same folders")
        assert place.hosts is not None
        hosts, waited = place.hosts, []

        def wait() -> None:
            try:
                hosts.wait(GANG, [Path("/proc")])  # its own is of another device
            except PodMissing as error:
                waited.append(str(error))

        waiting = threading.Thread(target=wait)
        waiting.start()
        assert place.pods[0].wait(20) == STALE_EXIT
        if not place.by_engine:  # else it was seen to end
            hosts.leave(GANG, final=False)
        waiting.join(20)
        ended = "its container ended with 75" if place.by_engine else "the gang ended before"
        assert [words.startswith(ended) for words in waited] == [True], waited

    @pytest.mark.parametrize("unread", [0, 2000])
    def test_a_pod_that_stands_still_holds_nobody_up(
        self, place: RankRuntime, unread: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(pod_link, "START_S", 0.2)
        assert place.hosts is not None
        os.kill(place.host_pid(), signal.SIGSTOP)
        for _ in range(unread):
            place.hosts.extend(1e12)
        for words in ("its pod does not answer", "its pod is gone"):
            with pytest.raises(PodMissing, match=words):
                place.start(0, ["true"])
        del place.lines[0]
        os.kill(place.host_pid(), signal.SIGCONT)
        place.hosts.wait(GANG, [])
        monkeypatch.undo()
        place.start(1, ["true"])
        assert place.end(1).code == 0

    def test_a_pod_of_another_user_is_refused(self, place: RankRuntime) -> None:
        if os.geteuid() != 0:
            pytest.skip("only root starts programs of other users")
        if place.by_engine:
            pytest.skip("the agent starts it")
        assert place.hosts is not None
        other = GangKey("other", 1)
        place.hosts.expect(other, Owner(1_900_000_007))
        place.start_pod(job="other")
        with pytest.raises(PodMissing, match="runs as user 0, and the team's is 1900000007 here"):
            place.hosts.wait(other, [])

    def test_a_pod_that_is_deleted_ends_after_its_last_rank(self, place: RankRuntime) -> None:
        os.mkfifo(place.folder / "go")
        place.start(0, ["/bin/sh", "-c", "echo ready; read x < go"])
        place.said(0, "ready")
        os.kill(place.host_pid(), signal.SIGTERM)
        assert place.hosts is not None
        until(lambda: place.hosts is not None and place.hosts.is_leaving(place.pod))
        with pytest.raises(PodMissing, match="its pod is gone"):
            place.start(1, ["true"])
        del place.lines[1]
        (place.folder / "go").write_text("x\n")
        assert place.end(0).code == 0
        assert place.pods[0].wait(20) == 0
