"""How ranks of a node agent end: stopped, killed, hanging, and with their agent."""

from __future__ import annotations

import os
import signal
from datetime import UTC, datetime, timedelta
from pathlib import Path
from textwrap import dedent

import psutil
import pytest

from gangline.local.kafka import EmbeddedKafka
from gangline_schemas.events.heartbeats import WorkerHeartbeat
from gangline_schemas.events.scheduling import GangStopping, ReleaseReason, StopReason
from gangline_schemas.events.workers import (
    ExitReason,
    NodeJoined,
    NodeLeaving,
    WorkerExited,
    WorkerStacks,
    WorkerStarted,
)
from support.fakes.metadata_server import MetadataServer
from support.fixtures.node import agent_of_this_module, harness, shared
from support.harnesses.node import TEAM, NodeHarness, alive, python
from support.waiting import until

__all__ = ["agent_of_this_module", "harness", "shared"]  # fixtures are used by being here

NIGHTLY = pytest.mark.nightly


def test_preempted_ranks_are_asked_and_the_deaf_one_is_killed(shared: NodeHarness) -> None:
    node = shared.start_agent()
    gang = shared.allocate(
        node,
        stop_grace_seconds=30,
        command=python("""
            import os, signal, time
            from gangline_worker import report, should_stop
            if os.environ["RANK"] == "1":
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                print("deaf", flush=True)
                time.sleep(600)
            report({"x": 1}, 1)
            print("hears", flush=True)
            while not (reason := should_stop()):
                time.sleep(0.01)
            print("asked to stop:", reason)
        """),
    )
    shared.wait(lambda: shared.lines(0) == ["hears"] and shared.lines(1) == ["deaf"])

    shared.publish(
        gang.job_id,
        GangStopping(
            job_id=gang.job_id,
            attempt=1,
            reason=StopReason.PREEMPTED,
            deadline=datetime.now(UTC) + timedelta(seconds=1.5),
        ),
    )

    exits = shared.exits(2)
    assert (exits[1, 0].reason, exits[1, 0].exit_code) == (ExitReason.STOPPED, 0)
    assert (exits[1, 1].reason, exits[1, 1].signal) == (ExitReason.STOPPED, signal.SIGKILL)
    shared.wait(lambda: shared.lines(0)[-1] == "asked to stop: preempted")


def test_sigterm_comes_shortly_before_the_end_and_to_the_process_that_asks_alone(
    shared: NodeHarness,
) -> None:
    script = shared.folder / "asks.py"
    script.write_text(
        dedent("""
            import signal, sys, threading
            from gangline_worker import flush, should_stop
            signalled = threading.Event()
            signal.signal(signal.SIGTERM, lambda *_: signalled.set())
            should_stop()
            flush()
            print("asks", flush=True)
            while not (signalled.wait(0.01) or should_stop()):
                pass
            print("told", should_stop(), signalled.is_set(), flush=True)
            signalled.wait()
            print("signalled", flush=True)
        """)
    )
    gang = shared.allocate(
        shared.start_agent(), gpus=[0], run=f"python {script}; echo the shell too"
    )
    shared.wait(lambda: shared.lines(0) == ["asks"])
    shared.publish(
        gang.job_id,
        GangStopping(
            job_id=gang.job_id,
            attempt=1,
            reason=StopReason.PREEMPTED,
            deadline=datetime.now(UTC) + timedelta(seconds=4),
        ),
    )
    assert shared.exits(1)[1, 0].exit_code == 0
    said = ["asks", "told preempted False", "signalled", "the shell too"]
    shared.wait(lambda: shared.lines(0) == said, f"it said {shared.lines(0)}")


GRANDCHILDREN = """
    import os, subprocess, sys, time
    child = subprocess.Popen(["sleep", "600"])
    away = subprocess.Popen(["sleep", "600"], start_new_session=True)
    print(os.getpid(), child.pid, away.pid, flush=True)
    time.sleep(600)
"""


FORKED_GRANDCHILDREN = """
    import os, sys, time
    assert "torch" in sys.modules, "not warm"
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.setsid()
        daemon = os.fork()
        if daemon:
            os.write(writing, str(daemon).encode())
        time.sleep(600)
    child = os.fork()
    if child == 0:
        time.sleep(600)
    print(os.getpid(), child, os.read(reading, 20).decode(), flush=True)
    time.sleep(600)
"""


def grandchildren(harness: NodeHarness, *, warm: str) -> list[str]:
    """A command whose ranks leave processes behind, by exec or, where they start warm, by fork."""
    if warm == "off":
        return python(GRANDCHILDREN)
    script = harness.folder / "grandchildren.py"
    script.write_text(dedent(FORKED_GRANDCHILDREN))
    return ["python", str(script)]


def pids(harness: NodeHarness, attempt: int = 1) -> list[int]:
    harness.wait(lambda: all(len(harness.lines(rank, attempt)) == 1 for rank in (0, 1)))
    found = [int(pid) for rank in (0, 1) for pid in harness.lines(rank, attempt)[0].split()]
    assert len(found) == 6
    assert all(alive(pid) for pid in found)
    return found


# As for ranks that are forks, see the test of a dead guard.
@pytest.mark.parametrize("warm", ["off", pytest.param("fork", marks=NIGHTLY), "standby"])
def test_nothing_outlives_a_killed_agent_and_the_next_one_joins_anew(
    harness: NodeHarness, warm: str
) -> None:
    first = harness.start_agent(warm=warm)
    harness.allocate(first, command=grandchildren(harness, warm=warm))
    started = pids(harness)
    assert harness.agent is not None
    until(lambda: "store_server.started" in (harness.folder / "agent.log").read_text())
    started += [child.pid for child in psutil.Process(harness.agent.pid).children(recursive=True)]

    harness.kill_agent()

    until(lambda: not any(alive(pid) for pid in started), "a process outlived its agent")
    second = harness.start_agent()
    assert second.incarnation != first.incarnation
    harness.allocate(second, job_id="job-2", run="echo again")
    assert harness.exits(2)[1, 0].reason is ExitReason.FINISHED


def guards(agent: int) -> list[int]:
    children = Path(f"/proc/{agent}/task/{agent}/children").read_text().split()
    return [
        int(pid)
        for pid in children
        if b"gangline_worker.agent.runtime.guard" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]


@pytest.mark.parametrize("warm", [pytest.param("off", marks=NIGHTLY), "fork"])
def test_a_dead_guard_is_replaced_and_one_killed_with_its_agent_is_made_up_for(
    harness: NodeHarness, warm: str
) -> None:
    node = harness.start_agent(warm=warm)
    harness.allocate(node, command=grandchildren(harness, warm=warm))
    started, agent = pids(harness), harness.agent
    assert agent is not None
    [first] = guards(agent.pid)
    os.kill(first, signal.SIGKILL)
    until(lambda: guards(agent.pid) not in ([], [first]), "nobody guards the ranks")
    assert all(alive(pid) for pid in started), "its death harms none"

    [second] = guards(agent.pid)
    os.kill(second, signal.SIGKILL)
    harness.kill_agent()
    harness.start_agent()

    until(lambda: not any(alive(pid) for pid in started), "a process outlived its agent")


def test_a_higher_attempt_ends_the_older_one_first(shared: NodeHarness) -> None:
    node = shared.start_agent()
    shared.allocate(node, attempt=1, command=python(GRANDCHILDREN))
    older = pids(shared)

    shared.allocate(node, attempt=2, command=python(GRANDCHILDREN))

    pids(shared, attempt=2)
    assert not any(alive(pid) for pid in older)
    exits = shared.exits(2)
    assert {item.reason for item in exits.values()} == {ExitReason.FENCED}
    order = [item for item in shared.of(WorkerExited) if item.attempt == 1]
    assert len(order) == 2


def test_a_released_gang_is_killed(shared: NodeHarness) -> None:
    node = shared.start_agent()
    gang = shared.allocate(node, command=python(GRANDCHILDREN))
    started = pids(shared)

    shared.release(gang, ReleaseReason.CANCELLED)

    exits = shared.exits(2)
    assert {item.reason for item in exits.values()} == {ExitReason.FENCED}
    assert not any(alive(pid) for pid in started)


HANGING = """
    import os, signal, sys
    def freezes():
        os.kill(os.getpid(), signal.SIGSTOP)
    def never_returns():
        while True:
            pass
    named = {}
    exec(f"def {os.environ['PASSWORD']}(f): f()", named)
    print("hangs", "torch" in sys.modules, flush=True)
    named[os.environ["PASSWORD"]](freezes if os.environ["RANK"] == "1" else never_returns)
"""


@pytest.mark.parametrize("warm", [pytest.param("off", marks=NIGHTLY), "fork"])
def test_what_hanging_ranks_did_is_known_before_they_are_killed(
    harness: NodeHarness, warm: str
) -> None:
    value = "a_value_of_this_test"
    (harness.secrets / TEAM).mkdir(parents=True)
    (harness.secrets / TEAM / "PASSWORD").write_text(value)
    (harness.secrets / TEAM / "PASSWORD").chmod(0o600)
    node = harness.start_agent(warm=warm)
    script = harness.folder / "program" / "hanging.py"
    script.parent.mkdir()
    script.write_text(dedent(HANGING))
    warmly = warm == "fork"
    command = ["python", str(script)] if warmly else python(HANGING)
    gang = harness.allocate(node, secrets=["PASSWORD"], command=command)
    harness.wait(lambda: all(harness.lines(rank) == [f"hangs {warmly}"] for rank in (0, 1)))
    harness.wait(lambda: len(harness.of(WorkerStarted)) == 2)
    processes = {item.rank: item.pid for item in harness.of(WorkerStarted)}
    until(lambda: psutil.Process(processes[1]).status() == psutil.STATUS_STOPPED)

    harness.fail_as_hung(gang)

    exits = harness.exits(2)
    assert {item.reason for item in exits.values()} == {ExitReason.FENCED}
    assert not any(alive(pid) for pid in processes.values())
    harness.wait(lambda: len(harness.of(WorkerStacks)) == 2)
    stacks = {item.rank: item for item in harness.of(WorkerStacks)}
    assert {rank: item.pid for rank, item in stacks.items()} == processes
    assert {item.missing for item in stacks.values()} == {None}
    assert stacks[1].state == "stopped"
    for rank, function in ((0, "never_returns"), (1, "freezes")):
        frames = stacks[rank].stacks.splitlines()
        inner = frames.index(next(line for line in frames if line.startswith(f"  {function} (")))
        assert frames[inner + 1].startswith("  [redacted] (<string>:")
        harness.wait(lambda at=rank, frame=frames[inner]: f"gangline: {frame}" in harness.lines(at))
    assert value.encode() not in b"".join(item.data.encode() for item in harness.events)


def test_an_agent_that_is_told_to_stop_lets_its_ranks_end(harness: NodeHarness) -> None:
    node = harness.start_agent()
    harness.allocate(node, command=python(GRANDCHILDREN))
    started = pids(harness)

    assert harness.stop_agent() == 0

    exits = harness.exits(2)
    assert {item.reason for item in exits.values()} == {ExitReason.STOPPED}
    assert not any(alive(pid) for pid in started)
    harness.wait(lambda: len(harness.of(NodeLeaving)) == 1)


def test_a_machine_that_is_to_go_leaves_and_joins_no_more(
    tmp_path: Path, kafka_bootstrap: str
) -> None:
    with (
        MetadataServer() as cloud,
        NodeHarness(
            tmp_path,
            kafka_bootstrap,
            GANGLINE_NOTICE_PROVIDER="aws",
            GANGLINE_NOTICE_URL=cloud.url,
            GANGLINE_NOTICE_INTERVAL_S="0.1",
        ) as harness,
    ):
        node = harness.start_agent()
        harness.allocate(
            node,
            stop_grace_seconds=60,
            command=python("""
                import signal, time
                from gangline_worker import should_stop
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                print("trains", flush=True)
                while not should_stop():
                    time.sleep(0.01)
            """),
        )
        harness.wait(lambda: all(harness.lines(rank) == ["trains"] for rank in (0, 1)))

        goes_at = datetime.now(UTC) + timedelta(seconds=120)
        cloud.spot_action = {"action": "terminate", "time": f"{goes_at:%Y-%m-%dT%H:%M:%SZ}"}

        exits = harness.exits(2)  # tests/integration/test_stopped_examples.py saves before it
        assert harness.agent is not None
        assert harness.agent.wait(60) == 0
        assert {(item.reason, item.exit_code) for item in exits.values()} == {
            (ExitReason.STOPPED, 0)
        }
        (leaving,) = harness.of(NodeLeaving)
        assert leaving.incarnation == node.incarnation
        assert leaving.reason == "aws will terminate this spot instance"

        # What starts it again does not bring it back, unless the notice is withdrawn.
        harness.launch_agent()
        harness.wait(lambda: "agent.join_delayed" in (tmp_path / "agent.log").read_text())
        assert len(harness.of(NodeJoined)) == 1
        cloud.spot_action = None
        harness.wait(lambda: len(harness.of(NodeJoined)) == 2)


def test_a_node_that_is_cut_off_kills_its_ranks_and_joins_again(tmp_path: Path) -> None:
    with (
        EmbeddedKafka(tmp_path / "kafka") as broker,
        NodeHarness(tmp_path, broker.bootstrap, GANGLINE_LEASE_S="8") as harness,
    ):
        node = harness.start_agent()
        harness.allocate(node, command=python(GRANDCHILDREN))
        started = pids(harness)
        assert broker.pid is not None

        os.kill(broker.pid, signal.SIGSTOP)
        try:
            until(lambda: not any(alive(pid) for pid in started), "ranks outlived the lease")
        finally:
            os.kill(broker.pid, signal.SIGCONT)

        exits = harness.exits(2)
        assert {item.reason for item in exits.values()} == {ExitReason.LEASE_LOST}
        assert {item.incarnation for item in exits.values()} == {node.incarnation}
        harness.wait(lambda: len(harness.of(NodeJoined)) == 2, "the node never joined again")
        again = harness.of(NodeJoined)[-1].node
        assert again.incarnation != node.incarnation
        harness.wait(
            lambda: any(
                item.incarnation == again.incarnation for item in harness.of(WorkerHeartbeat)
            )
        )
        harness.allocate(again, job_id="job-2", run="echo again")
        assert harness.exits(4)[1, 0].reason is ExitReason.FINISHED
