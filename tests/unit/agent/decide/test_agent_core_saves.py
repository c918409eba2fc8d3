"""What an agent says of saves: on its disk, then in the store, or lost."""

from __future__ import annotations

import pytest

from gangline_schemas.events.scheduling import StopReason
from gangline_schemas.events.workers import (
    CheckpointShardLost,
    CheckpointShardWritten,
    NodeSaved,
    WorkerExited,
)
from gangline_schemas.rank_protocol import Hello
from gangline_worker.agent.decide.effects import (
    CheckShard,
    Effect,
    KillRank,
    SendControl,
    TerminateRank,
    Upload,
)
from gangline_worker.agent.decide.inputs import RankExited, RankMessage, UploadFailed
from support.builders.agent_core import (
    Node,
    begun_anew,
    checked,
    kinds,
    published,
    ready,
    stopping,
    written,
)


@pytest.fixture
def node() -> Node:
    return Node()


def test_a_node_has_saved_when_all_its_ranks_have(node: Node):
    first, second = node.running()
    node.do(ready(first), ready(second))
    assert kinds(node.do(checked(first))) == [Upload]
    [saved] = published(node.do(checked(second)), NodeSaved)
    assert (saved.step, saved.ranks, saved.node_id) == (5, (0, 1), "node-0")


def test_steps_are_told_apart(node: Node):
    first, second = node.running()
    node.do(ready(first), ready(first, 6), ready(second))
    node.do(checked(first), checked(first, 6))
    [saved] = published(node.do(checked(second)), NodeSaved)
    assert saved.step == 5


def told(effects: list[Effect]) -> list[tuple[int, bool]]:
    return [(a.rank.rank, a.control.behind) for a in effects if isinstance(a, SendControl)]


def test_ranks_begin_no_other_save_while_two_of_one_rank_are_on_their_way(node: Node):
    first, second = node.running()
    node.do(*(RankMessage(rank, Hello(token="t", rank=rank.rank)) for rank in (first, second)))
    assert told(node.do(ready(first, 5), ready(second, 5), checked(first, 5))) == []
    assert told(node.do(ready(first, 6))) == [(0, True), (1, True)]
    assert told(node.do(ready(second, 6))) == []
    assert told(node.do(written(second, 5))) == []
    assert told(node.do(UploadFailed(first, 5, "the store is away"))) == [(0, False), (1, False)]


def test_a_part_that_is_not_there_is_neither_uploaded_nor_saved(node: Node):
    first, second = node.running()
    node.do(ready(first), ready(second))
    [lost] = published(node.do(UploadFailed(first, 5, "it is missing")), CheckpointShardLost)
    assert (lost.rank, lost.step, lost.reason) == (0, 5, "it is missing")
    assert published(node.do(checked(second)), NodeSaved) == []
    assert node.do(checked(first)) == []


def test_a_gang_that_failed_is_killed_and_its_saves_go_on(node: Node):
    first, second = node.running()
    node.do(ready(first), ready(second), checked(first), checked(second))
    node.do(RankExited(first, code=1))
    out = node.do(stopping(node, 60.0, reason=StopReason.FAILED))
    assert [item.rank for item in out if isinstance(item, KillRank)] == [second]
    assert kinds(out).index(TerminateRank) < kinds(out).index(KillRank)
    assert published(node.do(written(first)), CheckpointShardWritten)
    node.do(RankExited(second, signal=9))
    out = node.do(written(second))
    assert published(out, CheckpointShardWritten)
    assert len(published(out, WorkerExited)) == 1


def test_another_program_of_the_process_reads_again_what_was_on_its_way(node: Node):
    (rank,) = node.running(gpus=(0,))
    node.do(ready(rank))
    assert CheckShard in kinds(begun_anew(node))
    [saved] = published(node.do(checked(rank)), NodeSaved)
    assert saved.ranks == (0,)
