"""How the core ends ranks: fenced, preempted, killed, cut off, asked to leave."""

from __future__ import annotations

import pytest

from gangline_bus.decision import Tick
from gangline_schemas.events.scheduling import StopReason
from gangline_schemas.events.workers import ExitReason, NodeJoined, NodeLeaving, WorkerExited
from gangline_schemas.rank_protocol import Control, HandlesStop, Hello
from gangline_worker.agent.decide.effects import (
    CloseGang,
    Effect,
    KillRank,
    Prepare,
    Publish,
    SendControl,
    Spawn,
    TerminateRank,
)
from gangline_worker.agent.decide.inputs import (
    HeartbeatAcked,
    Leave,
    Prepared,
    RankExited,
    RankMessage,
    RankSpawned,
    StoreOpened,
)
from gangline_worker.agent.decide.keys import GangKey, RankKey
from support.builders.agent_core import (
    LEASE_S,
    Node,
    allocation,
    kinds,
    published,
    ready,
    released,
    stopping,
    written,
)
from support.builders.checkpoints import resumes


@pytest.fixture
def node() -> Node:
    return Node()


def waits_for_gpus(node: Node) -> GangKey:
    """Another job's gang that is ready, while the released one before it lives on."""
    node.running(job_id="before")
    node.do(released(job_id="before"))
    gang = GangKey("job", 1)
    assert Spawn not in kinds(node.do(allocation(), Prepared(gang), StoreOpened(gang)))
    return gang


def tick_for(node: Node, seconds: int) -> list[Effect]:
    out: list[Effect] = []
    for _ in range(seconds):
        node.time_s += 1.0
        node.acked()
        out += node.do(Tick())
    return out


def test_a_gang_fails_where_a_process_that_survives_sigkill_holds_its_gpus(node: Node):
    waits_for_gpus(node)
    assert published(tick_for(node, 299), WorkerExited) == []
    exits = published(tick_for(node, 3), WorkerExited)
    assert {(item.job_id, item.reason) for item in exits} == {("job", ExitReason.LAUNCH_FAILED)}
    assert [item.rank for item in exits] == [0, 1]
    assert "process 1000 of job before, which survives SIGKILL" in exits[0].message


def test_a_gang_starts_when_its_gpus_are_free_late(node: Node):
    waits_for_gpus(node)
    tick_for(node, 200)
    before = GangKey("before", 1)
    out = node.do(*(RankExited(RankKey(before, rank), signal=9) for rank in (0, 1)))
    assert kinds(out).count(Spawn) == 2
    assert published(tick_for(node, 200), WorkerExited) == []


def test_a_higher_attempt_waits_until_the_older_one_is_gone(node: Node):
    older = node.running(attempt=1)
    out = node.do(allocation(attempt=2))
    assert [item for item in out if isinstance(item, KillRank)] == [KillRank(r) for r in older]
    newer = GangKey("job", 2)
    assert Spawn not in kinds(node.do(Prepared(newer), StoreOpened(newer)))
    assert Spawn not in kinds(node.do(RankExited(older[0], signal=9)))
    out = node.do(RankExited(older[1], signal=9))
    assert kinds(out) == [Publish, CloseGang, Spawn, Spawn]
    assert published(out, WorkerExited)[0].reason is ExitReason.FENCED


def test_a_higher_attempt_elsewhere_ends_the_older_one_here(node: Node):
    node.running(attempt=1)
    out = node.do(allocation(attempt=2, node_id="node-9"))
    assert kinds(out) == [KillRank, KillRank]


def test_a_gang_waits_for_the_gpus_of_one_that_is_being_killed(node: Node):
    ranks = node.running()
    node.do(released())
    other = GangKey("other", 1)
    out = node.do(allocation(job_id="other", gpus=(1,)), Prepared(other), StoreOpened(other))
    assert Spawn not in kinds(out)
    out = node.do(*(RankExited(rank, signal=9) for rank in ranks))
    assert kinds(out).count(Spawn) == 1


def handles_stop(rank: RankKey, pid: int = 7) -> RankMessage:
    """A rank's process asks whether to stop."""
    return RankMessage(rank, HandlesStop(), pid)


def terminated(effects: list[Effect]) -> list[TerminateRank]:
    return [item for item in effects if isinstance(item, TerminateRank)]


def test_a_rank_that_asks_is_told_and_gets_sigterm_shortly_before_it_is_killed(node: Node):
    (rank,) = node.running(gpus=(0,))
    node.do(RankMessage(rank, Hello(rank=0, token="t")), handles_stop(rank, pid=77))
    assert node.do(stopping(node, 20.0)) == [SendControl(rank, Control(stop="preempted"))]
    assert node.do(stopping(node, 20.0)) == []
    for _ in range(14):
        node.time_s += 1.0
        node.acked()
        assert terminated(node.do(Tick())) == []
    node.time_s += 1.0
    assert terminated(node.do(Tick())) == [TerminateRank(rank, 77)]
    node.time_s += 4.9
    node.acked()
    assert {TerminateRank, KillRank}.isdisjoint(kinds(node.do(Tick())))
    node.time_s += 0.2
    assert KillRank in kinds(node.do(Tick()))
    (exited,) = published(node.do(RankExited(rank, signal=9)), WorkerExited)
    assert (exited.reason, exited.signal) == (ExitReason.STOPPED, 9)


def test_of_a_short_time_to_stop_a_quarter_is_left_at_sigterm(node: Node):
    (rank,) = node.running(gpus=(0,))
    node.do(handles_stop(rank), stopping(node, 4.0))
    node.time_s += 2.9
    assert terminated(node.do(Tick())) == []
    node.time_s += 0.1
    assert terminated(node.do(Tick())) == [TerminateRank(rank, 7)]


def test_a_deadline_that_comes_nearer_takes_sigterm_along(node: Node):
    (rank,) = node.running(gpus=(0,))
    node.do(handles_stop(rank), Leave("spot", 30.0))
    assert terminated(node.do(Leave("again", 4.0))) == []
    node.time_s += 3.1
    assert terminated(node.do(Tick())) == [TerminateRank(rank, 7)]


@pytest.mark.parametrize("connected", [False, True])
def test_a_rank_that_never_asks_gets_sigterm_at_once(node: Node, *, connected: bool):
    (rank,) = node.running(gpus=(0,))
    if connected:
        node.do(RankMessage(rank, Hello(rank=0, token="t"), 77))
    assert terminated(node.do(stopping(node, 20.0))) == [TerminateRank(rank)]
    assert terminated(node.do(Tick())) == []


def test_ranks_beside_one_that_asks_are_left_to_it_until_it_is_gone(node: Node):
    asking, silent = node.running()
    node.do(handles_stop(asking))
    assert terminated(node.do(stopping(node, 20.0))) == []
    node.do(RankExited(asking, code=0))
    assert terminated(node.do(Tick())) == [TerminateRank(silent)]


def test_a_process_that_appears_after_the_stop_gets_sigterm(node: Node):
    gang = GangKey("job", 1)
    node.do(allocation(gpus=(0,)), Prepared(gang), StoreOpened(gang), stopping(node, 20.0))
    rank = RankKey(gang, 0)
    assert terminated(node.do(RankSpawned(rank, 1))) == [TerminateRank(rank)]


def test_a_rank_that_saved_and_returned_0_when_asked_was_stopped(node: Node):
    (rank,) = node.running(gpus=(0,))
    node.do(stopping(node, 5.0))
    (exited,) = published(node.do(RankExited(rank, code=0)), WorkerExited)
    assert (exited.reason, exited.exit_code) == (ExitReason.STOPPED, 0)


def saved_and_exited(node: Node) -> RankKey:
    """A rank that was asked to stop, saved step 5 and returned 0."""
    (rank,) = node.running(gpus=(0,))
    node.do(stopping(node, 20.0), ready(rank), RankExited(rank, code=0))
    assert published(node.do(written(rank)), WorkerExited) == []
    return rank


def test_who_saved_when_asked_has_ended_once_that_is_committed(node: Node):
    saved_and_exited(node)
    assert published(node.do(resumes(1, 4, job_id="job")), WorkerExited) == []
    (exited,) = published(node.do(resumes(1, 5, job_id="job")), WorkerExited)
    assert exited.reason is ExitReason.STOPPED
    assert published(node.do(resumes(1, 6, job_id="job")), WorkerExited) == []


def test_who_saved_before_it_exited_waits_for_the_commit_too(node: Node):
    (rank,) = node.running(gpus=(0,))
    node.do(stopping(node, 20.0), ready(rank), written(rank))
    assert published(node.do(RankExited(rank, code=0)), WorkerExited) == []
    assert len(published(node.do(resumes(1, 5, job_id="job")), WorkerExited)) == 1


def test_a_commit_that_does_not_come_is_waited_for_until_the_deadline(node: Node):
    saved_and_exited(node)
    for _ in range(19):
        node.time_s += 1.0
        node.acked()
        assert published(node.do(Tick()), WorkerExited) == []
    node.time_s += 1.0
    assert len(published(node.do(Tick()), WorkerExited)) == 1


@pytest.mark.parametrize(
    "reason", [StopReason.CANCELLED, StopReason.MAX_RUNTIME, StopReason.RESTORE]
)
def test_a_job_that_does_not_go_on_from_there_waits_for_no_commit(node: Node, reason: StopReason):
    (rank,) = node.running(gpus=(0,))
    node.do(stopping(node, 20.0, reason=reason), ready(rank), RankExited(rank, code=0))
    (exited,) = published(node.do(written(rank)), WorkerExited)
    assert exited.reason is ExitReason.STOPPED


def test_who_is_cancelled_while_it_waits_for_the_commit_waits_no_longer(node: Node):
    saved_and_exited(node)
    out = node.do(stopping(node, 20.0, reason=StopReason.CANCELLED), Tick())
    assert len(published(out, WorkerExited)) == 1


def test_nobody_waits_for_the_commit_of_a_gang_that_is_over(node: Node):
    saved_and_exited(node)
    assert len(published(node.do(released()), WorkerExited)) == 1


def test_a_rank_that_was_stopped_has_not_finished_though_the_lease_ended_meanwhile(node: Node):
    (rank,) = node.running(gpus=(0,))
    node.do(stopping(node, 5.0))
    node.time_s += LEASE_S + 0.1
    assert KillRank(rank) in node.do(Tick())
    (exited,) = published(node.do(RankExited(rank, code=0)), WorkerExited)
    assert (exited.reason, exited.exit_code) == (ExitReason.STOPPED, 0)


def test_a_far_deadline_is_bounded_by_the_grace_of_the_spec(node: Node):
    (rank,) = node.running(gpus=(0,), grace_s=2.0)
    node.do(stopping(node, 10_000.0))
    node.acked()
    node.time_s += 2.1
    assert KillRank(rank) in node.do(Tick())


def test_a_gang_that_is_stopped_before_it_started_never_starts(node: Node):
    node.do(allocation())
    exits = published(node.do(stopping(node, 5.0)), WorkerExited)
    assert [item.reason for item in exits] == [ExitReason.STOPPED] * 2
    gang = GangKey("job", 1)
    assert Spawn not in kinds(node.do(Prepared(gang), StoreOpened(gang)))
    assert kinds(node.do(released())) == [CloseGang]


def test_a_kill_that_comes_before_the_process_does_follows_it(node: Node):
    gang = GangKey("job", 1)
    node.do(allocation(gpus=(0,)), Prepared(gang), StoreOpened(gang))
    assert KillRank not in kinds(node.do(released()))
    assert KillRank(RankKey(gang, 0)) in node.do(RankSpawned(RankKey(gang, 0), 1))


def test_a_kill_is_repeated_until_the_process_is_gone(node: Node):
    (rank,) = node.running(gpus=(0,))
    node.do(released())
    node.time_s += 1.1
    assert KillRank(rank) in node.do(Tick())


def test_a_lost_lease_kills_all_and_the_node_joins_again_when_they_are_gone(node: Node):
    ranks = node.running()
    node.time_s += LEASE_S - 0.1
    assert KillRank not in kinds(node.do(Tick()))
    node.time_s += 0.2
    out = node.do(Tick())
    assert [item for item in out if isinstance(item, KillRank)] == [KillRank(r) for r in ranks]
    assert published(node.acked(), NodeJoined) == []
    exits = published(node.do(*(RankExited(rank, signal=9) for rank in ranks)), WorkerExited)
    assert {(item.reason, item.incarnation) for item in exits} == {(ExitReason.LEASE_LOST, "boot")}
    (joined,) = published(node.acked(), NodeJoined)
    assert joined.node.incarnation == node.core.incarnation == "boot.1"
    assert node.do(allocation(attempt=2)) == []
    assert Prepare in kinds(node.do(allocation(attempt=3, incarnation="boot.1")))


def test_an_acknowledgement_counts_from_its_sending_and_for_its_incarnation(node: Node):
    sent_s = node.time_s
    node.running()
    node.time_s += LEASE_S - 1
    node.do(HeartbeatAcked("boot", sent_s + 2))
    node.time_s += 2.5
    assert KillRank not in kinds(node.do(Tick()))
    node.time_s += 1.0
    assert KillRank in kinds(node.do(Tick()))
    assert published(node.do(HeartbeatAcked("boot", node.time_s)), NodeJoined) == []


def test_leaving_stops_the_ranks_and_takes_no_more(node: Node):
    (rank,) = node.running(gpus=(0,))
    out = node.do(Leave("stop", 5.0))
    assert len(published(out, NodeLeaving)) == 1
    assert TerminateRank(rank) in out
    assert Prepare not in kinds(node.do(allocation(job_id="other", gpus=(1,))))
    assert not node.core.gone
    (exited,) = published(node.do(RankExited(rank, code=0)), WorkerExited)
    assert exited.reason is ExitReason.STOPPED
    assert node.core.gone


def test_a_second_order_to_leave_can_only_shorten_the_time_of_the_ranks(node: Node):
    (rank,) = node.running(gpus=(0,))
    node.do(Leave("aws will terminate this spot instance", 20.0))
    assert node.do(Leave("the agent was told to stop", 2.0), Leave("again", 9.0)) == []
    node.time_s += 1.9
    assert KillRank not in kinds(node.do(Tick()))
    node.time_s += 0.2
    assert KillRank(rank) in node.do(Tick())
