"""How the core has the stacks of a hanging gang taken before it is killed."""

from __future__ import annotations

import pytest

from gangline_bus.decision import Tick
from gangline_schemas.events.faults import FailureCause, GangFailed
from gangline_schemas.events.workers import WorkerStacks
from gangline_schemas.rank_protocol import Report
from gangline_worker.agent.decide.effects import KillRank, TakeStacks
from gangline_worker.agent.decide.inputs import RankExited, RankMessage, RankStacks, StacksTaken
from gangline_worker.agent.decide.keys import GangKey, RankKey
from gangline_worker.agent.decide.stops import STACKS_WAIT_S
from support.builders.agent_core import (
    LEASE_S,
    START,
    Node,
    allocation,
    begun_anew,
    kinds,
    published,
    released,
    stopping,
)
from support.builders.gangs import gang_failed


@pytest.fixture
def node() -> Node:
    return Node()


def hangs(cause: FailureCause = FailureCause.HANG) -> GangFailed:
    return gang_failed("job", 1, START, cause)


def taken(*ranks: RankKey) -> StacksTaken:
    """What was read of them."""
    found = tuple(RankStacks(rank, 1000 + rank.rank, "stopped", "thread M") for rank in ranks)
    return StacksTaken(GangKey("job", 1), found)


def test_the_stacks_of_a_hanging_gang_are_taken_before_it_is_killed(node: Node):
    first, second = node.running()
    node.do(RankMessage(first, Report(step=(7,), time_ms=(1,), metrics={})))
    pids = {first: 1000, second: 1001}
    assert node.do(hangs()) == [TakeStacks(first.gang, pids)]
    assert kinds(node.do(released())) == []

    out = node.do(taken(first, second))

    stacks = published(out, WorkerStacks)
    assert [(item.rank, item.pid, item.state) for item in stacks] == [
        (0, 1000, "stopped"),
        (1, 1001, "stopped"),
    ]
    assert [(item.last_step, item.stacks) for item in stacks] == [
        (7, "thread M"),
        (None, "thread M"),
    ]
    assert out[2:] == [KillRank(first), KillRank(second)]


def test_stacks_are_waited_for_a_while_only(node: Node):
    (rank,) = node.running(gpus=(0,))
    node.do(hangs(), released())
    node.time_s += STACKS_WAIT_S - 0.1
    assert KillRank not in kinds(node.do(Tick()))
    node.time_s += 0.1
    assert KillRank(rank) in node.do(Tick())
    node.do(RankExited(rank, signal=9))
    # What is known is reported all the same.
    assert len(published(node.do(taken(rank)), WorkerStacks)) == 1


def test_stacks_that_are_there_let_the_gang_run_on_until_it_is_released(node: Node):
    (rank,) = node.running(gpus=(0,))
    node.do(hangs())
    assert KillRank not in kinds(node.do(taken(rank), Tick()))
    assert KillRank(rank) in node.do(released())


def test_a_rank_that_was_to_be_killed_by_then_is_killed_when_its_stacks_are_there(node: Node):
    (rank,) = node.running(gpus=(0,))
    node.do(stopping(node, 1.0), hangs())
    node.time_s += 1.5
    assert KillRank not in kinds(node.do(Tick()))
    assert KillRank(rank) in node.do(taken(rank), Tick())


def test_a_lost_lease_waits_for_no_stacks(node: Node):
    (rank,) = node.running(gpus=(0,))
    node.time_s += LEASE_S - 0.1
    node.do(hangs(), released())
    node.time_s += 0.2
    assert KillRank(rank) in node.do(Tick())


def test_stacks_are_taken_once_and_for_a_hang_alone(node: Node):
    node.running(gpus=(0,))
    assert node.do(hangs(FailureCause.NODE)) == []
    assert kinds(node.do(hangs(), hangs())) == [TakeStacks]


def test_a_gang_that_does_not_run_here_has_no_stacks(node: Node):
    assert node.do(hangs()) == []
    node.do(allocation())
    assert node.do(hangs()) == []


def test_stacks_are_taken_again_by_a_program_that_goes_on(node: Node):
    ranks = node.running()
    node.do(hangs())
    assert begun_anew(node) == [TakeStacks(ranks[0].gang, {ranks[0]: 1000, ranks[1]: 1001})]
