"""An agent restarts its program in place: its ranks do not notice; its death still ends them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import dedent
from typing import TypeVar

import psutil
import pytest

from gangline_schemas.base import Event
from gangline_schemas.events.heartbeats import WorkerHeartbeat
from gangline_schemas.events.logs import WorkerLog
from gangline_schemas.events.steps import WorkerStep
from gangline_schemas.events.workers import ExitReason, NodeJoined, WorkerExited, WorkerStarted
from gangline_schemas.isolation import Isolation
from support.harnesses.node import NodeHarness, alive
from support.waiting import until

EventT = TypeVar("EventT", bound=Event)

TRAINS = """
    import os, pathlib, sys, time
    import torch
    import torch.distributed as dist
    from gangline_worker import doing, flush, report

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    doing("training")
    step, stop = 0, torch.zeros(1)
    while not stop.item():
        step += 1
        loss = model(torch.randn(8, 4)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        report({"loss": loss.item()}, step)
        print("step", step, "of", os.getpid(), flush=True)
        stop[0] = pathlib.Path("STOP_FILE").exists()
        dist.all_reduce(stop)
        time.sleep(0.01)
    again = dist.new_group()  # needs the rendezvous once more
    dist.barrier(group=again)
    flush()
    print("took", step, "steps", end="", flush=True)
    left = pathlib.Path("STOP_FILE-left")
    if rank == 1:
        left.touch()
        sys.exit(7)
    while not left.exists():  # gloo fails where the other one has gone
        time.sleep(0.01)
"""

LEAVES_PROCESSES = """
    import os, subprocess, time
    subprocess.Popen(["sleep", "600"])
    subprocess.Popen(["sleep", "600"], start_new_session=True)
    print("ready", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def harness(tmp_path: Path, kafka_bootstrap: str) -> Iterator[NodeHarness]:
    config = tmp_path / "gangline.toml"
    config.write_text("[agent]\nspool_limit_mb = 32\n")
    with NodeHarness(tmp_path, kafka_bootstrap, GANGLINE_CONFIG=str(config)) as made:
        yield made


def said(harness: NodeHarness, event: str) -> int:
    """How often the agent's log has it."""
    return (harness.folder / "agent.log").read_text().count(f'"{event}"')


def restart_in_place(harness: NodeHarness) -> None:
    """As `systemctl reload` does."""
    assert harness.agent is not None
    before, pid = said(harness, "agent.restarted"), harness.agent.pid
    os.kill(pid, signal.SIGHUP)
    harness.wait(lambda: said(harness, "agent.restarted") > before, "it did not go on")


def once(harness: NodeHarness, kind: type[EventT]) -> list[EventT]:
    """As they came; what was sent again has the same id, and counts once for everybody."""
    found = {item.id: item.data for item in list(harness.events)}
    return [event for event in found.values() if isinstance(event, kind)]


def steps(harness: NodeHarness, rank: int) -> list[int]:
    """All that was published, as it came."""
    return [step for item in once(harness, WorkerStep) if item.rank == rank for step in item.step]


def written(harness: NodeHarness, rank: int) -> list[str]:
    """Lines on stdout, as they came."""
    batches = [item for item in once(harness, WorkerLog) if item.rank == rank]
    return [line.text for item in batches for line in item.lines if line.stream == "stdout"]


def test_training_continues_while_its_agent_restarts_twice(harness: NodeHarness):
    stop = harness.folder / "stop"
    node = harness.start_agent()
    command = ["python", "-c", dedent(TRAINS).replace("STOP_FILE", str(stop))]
    harness.allocate(node, command=command)
    harness.wait(lambda: len(steps(harness, 0)) > 20, "it never trained")

    for _ in range(2):
        restart_in_place(harness)
        seen = len(steps(harness, 0))
        harness.wait(lambda seen=seen: len(steps(harness, 0)) > seen + 20, "no more steps came")
    stop.touch()

    exits = harness.exits(2)
    assert {key: item.exit_code for key, item in exits.items()} == {(1, 0): 0, (1, 1): 7}
    assert [exits[1, 0].reason, exits[1, 1].reason] == [ExitReason.FINISHED, ExitReason.FAILED]
    started = {item.rank: item.pid for item in once(harness, WorkerStarted)}
    assert len(once(harness, WorkerStarted)) == 2
    taken = exits[1, 0].last_step
    assert taken is not None
    for rank in (0, 1):
        harness.wait(lambda rank=rank: len(steps(harness, rank)) >= taken)
        assert steps(harness, rank) == list(range(1, taken + 1))
        expected = [f"step {step} of {started[rank]}" for step in range(1, taken + 1)]
        harness.wait(lambda rank=rank: len(written(harness, rank)) > taken)
        assert written(harness, rank) == [*expected, f"took {taken} steps"]
        batches = [item for item in once(harness, WorkerLog) if item.rank == rank]
        ends = [item.first_line + len(item.lines) for item in batches]
        assert [item.first_line for item in batches] == [0, *ends[:-1]]
    assert [item.node.incarnation for item in once(harness, NodeJoined)] == [node.incarnation]
    beats = [item.sequence for item in once(harness, WorkerHeartbeat)]
    assert all(after > before for before, after in pairwise(beats))
    assert {item.incarnation for item in once(harness, WorkerHeartbeat)} == {node.incarnation}


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """Users of teams may pass through it, as not through pytest's own: ranks get sandboxes."""
    with TemporaryDirectory(
        prefix="gangline-restart-", dir="/var/tmp", ignore_cleanup_errors=True
    ) as made:
        Path(made).chmod(0o755)
        yield Path(made)


def test_ranks_of_an_agent_that_began_anew_still_die_with_it(
    open_folder: Path, kafka_bootstrap: str
):
    """In sandboxes, where the machine has them: their first processes are tied to it, too."""
    with NodeHarness(open_folder, kafka_bootstrap, GANGLINE_ISOLATION="auto") as harness:
        node = harness.start_agent()
        for slot in (0, 1):
            command = ["python", "-c", dedent(LEAVES_PROCESSES)]
            harness.allocate(node, job_id=f"job-{slot}", gpus=[slot], command=command)
            harness.wait(lambda slot=slot: len(harness.of(WorkerLog)) > slot)
            restart_in_place(harness)
        assert harness.agent is not None
        agent = psutil.Process(harness.agent.pid)
        ranks = [item.pid for item in harness.of(WorkerStarted)]
        assert [psutil.Process(pid).ppid() for pid in ranks] == [agent.pid] * 2
        everything = [child.pid for child in agent.children(recursive=True)]
        sandboxes = 2 if node.isolation.strength >= Isolation.NAMESPACES.strength else 0
        # Each rank has two children; the guard and the store server are the agent's own.
        assert len(everything) >= 2 * 3 + sandboxes + 2

        harness.kill_agent()

        until(lambda: not any(alive(pid) for pid in everything), "a process outlived its agent")
        assert harness.of(WorkerExited) == []


def test_a_program_that_would_not_start_costs_nothing(harness: NodeHarness):
    config = harness.folder / "gangline.toml"
    node = harness.start_agent()
    harness.allocate(node, gpus=[0], command=["python", "-c", dedent(LEAVES_PROCESSES)])
    harness.wait(lambda: harness.lines(0) == ["ready"])
    assert harness.agent is not None

    config.write_text("[agent]\nspool_limit_mb = 'much'\n")
    os.kill(harness.agent.pid, signal.SIGHUP)
    harness.wait(lambda: said(harness, "agent.restart_refused") == 1)

    config.write_text("[agent]\nspool_limit_mb = 64\n")
    restart_in_place(harness)
    (rank,) = harness.of(WorkerStarted)
    assert alive(rank.pid)
    assert harness.stop_agent() == 0
    (exited,) = harness.exits(1).values()
    assert exited.reason is ExitReason.STOPPED
