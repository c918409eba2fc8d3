"""What an agent tells the ranks of a job with incremental saves: what they may refer to."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from gangline_bus.codec import Received
from gangline_schemas.base import Event
from gangline_schemas.checkpoint_policy import Incremental
from gangline_schemas.envelope import Envelope
from gangline_schemas.events.scheduling import ResumePointChanged
from gangline_schemas.rank_protocol import Control, Hello
from gangline_worker.agent.decide.core import AgentCore
from gangline_worker.agent.decide.effects import Effect, SendControl
from gangline_worker.agent.decide.inputs import (
    Input,
    Prepared,
    RankMessage,
    RankSpawned,
    StoreOpened,
)
from gangline_worker.agent.decide.keys import GangKey, Moment, RankKey
from gangline_worker.agent.decide.membership import AgentLimits
from gangline_worker.agent.workspace.environment import rank_environment
from gangline_worker.agent_line import Reporter
from support.builders.checkpoints import JOB, allocated, restored, resumes
from support.builders.gang_paths import gang_paths
from support.builders.gangs import node_info
from support.fakes.agent_end import AgentEnd
from support.waiting import until

AT = Moment(1.0, datetime(2026, 11, 1, tzinfo=UTC))
NODE = node_info(incarnation="a")
RANKS = [RankKey(GangKey(JOB, 2), rank) for rank in (0, 1)]


class Node:
    """An agent with both ranks of attempt 2 running and connected."""

    def __init__(self, incremental: Incremental | None) -> None:
        self.core = AgentCore(NODE, AgentLimits())
        self.core.start(AT)
        gang = GangKey(JOB, 2)
        self.do(allocated(2, incremental=incremental), Prepared(gang), StoreOpened(gang))
        self.do(*(RankSpawned(rank, 100 + rank.rank) for rank in RANKS))

    def do(self, *items: Input | Event) -> list[Effect]:
        out: list[Effect] = []
        for item in items:
            given = item
            if isinstance(item, Event):
                given = Received(Envelope("e", "/t", AT.utc, JOB, item), "t", 0, 0)
            out += self.core.handle(given, AT)  # type: ignore[arg-type]
        return out

    def greet(self, rank: RankKey) -> list[Effect]:
        return self.do(RankMessage(rank, Hello(rank=rank.rank, token="t")))


def told(committed: int | None) -> list[Effect]:
    return [SendControl(rank, Control(committed=committed)) for rank in RANKS]


@pytest.fixture
def node() -> Node:
    node = Node(Incremental())
    assert [node.greet(rank) for rank in RANKS] == [[], []]
    return node


@pytest.mark.parametrize(
    ("event", "committed"),
    [
        (resumes(2, 40), 40),
        (resumes(1, 40), None),
        (restored(2, 30), None),
        (ResumePointChanged(job_id=JOB, checkpoint=None), None),
        (resumes(2, 20), 20),
    ],
)
def test_ranks_may_refer_to_what_their_attempt_would_start_from_again(
    node: Node, event: ResumePointChanged, committed: int | None
) -> None:
    assert node.do(resumes(2, 10)) == told(10)
    assert node.do(event) == told(committed)


def test_a_rank_that_connects_later_is_told_as_well() -> None:
    node = Node(Incremental())
    assert node.do(resumes(2, 10)) == []
    assert [effect for rank in RANKS for effect in node.greet(rank)] == told(10)


def test_other_jobs_are_told_nothing(node: Node) -> None:
    assert node.do(resumes(2, 10, job_id="job-2")) == []
    whole = Node(None)
    for rank in RANKS:
        whole.greet(rank)
    assert whole.do(resumes(2, 10)) == []


@pytest.mark.parametrize(("incremental", "found"), [(None, None), (Incremental(full_every=7), "7")])
def test_a_rank_finds_how_often_to_save_whole(
    tmp_path: Path, incremental: Incremental | None, found: str | None
) -> None:
    allocation = allocated(incremental=incremental)
    paths = gang_paths(tmp_path)
    environment = rank_environment(
        allocation, allocation.nodes[0], 0, paths, gpus="", token="t", secrets={}
    )
    assert environment.get("GANGLINE_CHECKPOINT_FULL_EVERY") == found


def test_a_rank_knows_what_it_was_told_last(tmp_path: Path) -> None:
    agent = AgentEnd(tmp_path)
    reporter = Reporter(agent.path, token="t")
    try:
        agent.wait_for(bool)
        assert reporter.committed_step is None
        agent.ask(Control(committed=20))
        until(lambda: reporter.committed_step == 20)
        agent.ask(Control(checkpoint_request=1))
        until(lambda: reporter.committed_step is None)
    finally:
        agent.hang_up()
