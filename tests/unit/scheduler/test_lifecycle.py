"""One job's states: queue, gang, ranks, end; restarts, stops and what is outdated."""

from __future__ import annotations

from datetime import timedelta

import pytest

from gangline_schemas.events.faults import NodeLeft
from gangline_schemas.events.scheduling import (
    GangAllocated,
    GangReleased,
    GangStopping,
    JobQueued,
    JobStateChanged,
    ReleaseReason,
    StopReason,
)
from gangline_schemas.events.workers import ExitReason, NodeInfo, SampleRange
from support.builders.deciding import only
from support.builders.scheduler import Cluster, node, started_jobs, states


def test_a_job_goes_from_the_queue_to_success() -> None:
    cluster = Cluster(node(gpus=2))

    submitted = cluster.submit("a", gpus=2)
    begun = cluster.start("a")
    cluster.now = cluster.now.replace(second=30)
    ended = cluster.exit("a")

    assert only(submitted, JobQueued).job_id == "a"
    assert states(submitted) == ["pending", "scheduled"]
    assert only(submitted, GangAllocated).attempt == 1
    assert states(begun) == ["initializing", "running"]
    assert states(ended) == ["succeeded"]
    assert only(ended, GangReleased).gpu_seconds == 60
    assert "a" not in cluster.state.jobs


def test_a_gang_is_placed_whole_or_not_at_all() -> None:
    cluster = Cluster(node("n1", gpus=2), node("n2", gpus=2))
    cluster.submit("a", gpus=3)

    assert started_jobs(cluster.submit("b", gpus=2)) == []
    assert started_jobs(cluster.submit("c", gpus=1)) == ["c"]


def test_ranks_are_numbered_over_the_nodes() -> None:
    cluster = Cluster(node("n1", gpus=2), node("n2", gpus=2))

    gang = only(cluster.submit("a", gpus=4), GangAllocated)

    assert [(part.node_id, part.first_rank, part.gpus) for part in gang.nodes] == [
        ("n1", 0, (0, 1)),
        ("n2", 2, (0, 1)),
    ]


def on_loopback(node_id: str, loopback: str | None, gpus: int = 2) -> NodeInfo:
    return node(node_id, gpus=gpus).model_copy(update={"loopback": loopback})


def test_a_gang_is_placed_over_nodes_that_reach_each_other() -> None:
    """Loopback of one machine leads to no other one: its nodes are a cluster by themselves."""
    one, two = on_loopback("n1", "m1"), on_loopback("n2", "m2")
    reached = [on_loopback("n3", None, gpus=3), on_loopback("n4", None, gpus=3)]
    cluster = Cluster(one, two)
    assert started_jobs(cluster.submit("a", gpus=4)) == []
    assert "set GANGLINE_ADDRESS of their agents" in cluster.state.jobs["a"].waiting.message
    assert started_jobs(cluster.submit("b", gpus=2)) == ["b"], "one node is enough"

    cluster = Cluster(one, two, *reached)
    gang = only(cluster.submit("a", gpus=5), GangAllocated)
    assert [part.node_id for part in gang.nodes] == ["n3", "n4"]
    assert started_jobs(cluster.submit("b", gpus=4)) == []

    cluster = Cluster(one, on_loopback("n2", "m1"), on_loopback("n3", "m2", gpus=3))
    gang = only(cluster.submit("a", gpus=4), GangAllocated)
    assert [part.node_id for part in gang.nodes] == ["n1", "n2"], "agents of one machine"


def test_agents_of_a_gang_know_where_the_others_give_copies() -> None:
    gives = node("n2", gpus=2).model_copy(update={"copies_port": 4100})
    gang = only(Cluster(node("n1", gpus=2), gives).submit("a", gpus=4), GangAllocated)
    assert [part.copies_port for part in gang.nodes] == [None, 4100]


def test_rendezvous_ports_rotate_over_the_gangs_that_a_node_leads() -> None:
    cluster = Cluster(node(gpus=1, ports=(7001, 7002)))
    ports = []
    for job_id in ("a", "b", "c"):
        ports.append(only(cluster.submit(job_id), GangAllocated).rendezvous.port)
        cluster.cancel(job_id)

    assert ports == [7001, 7002, 7001]


def test_a_failed_gang_waits_again_and_starts_its_next_attempt() -> None:
    cluster = Cluster(node(gpus=2))
    cluster.run("a", gpus=2)

    decided = cluster.fail("a")

    assert only(decided, GangReleased).reason is ReleaseReason.RESTARTING
    assert only(decided, GangAllocated).attempt == 2
    assert states(decided) == ["pending", "scheduled"]


def test_a_restarted_gang_gets_its_gpus_back_before_a_job_that_waited_longer() -> None:
    cluster = Cluster(node(gpus=2))
    cluster.run("first", gpus=2)
    cluster.submit("urgent", gpus=2, priority=0)

    again = only(cluster.fail("first"), GangAllocated)

    assert (again.job_id, again.attempt) == ("first", 2)


def test_a_final_failure_ends_the_job_with_the_verdicts_words() -> None:
    cluster = Cluster(node())
    cluster.run("a")

    decided = cluster.fail("a", action="fail")

    assert only(decided, JobStateChanged).reason == "rank 1 was killed by signal 9"
    assert states(decided) == ["failed"]
    assert only(decided, GangReleased).reason is ReleaseReason.FAILED


def test_verdicts_and_reports_about_older_attempts_change_nothing() -> None:
    cluster = Cluster(node())
    cluster.run("a")
    cluster.fail("a")

    assert cluster.fail("a", attempt=1) == []
    assert cluster.exit("a", attempt=1) == []


def test_a_rank_that_fails_is_left_to_the_fault_manager() -> None:
    cluster = Cluster(node())
    cluster.run("a")

    assert cluster.exit("a", ExitReason.FAILED) == []


def test_the_restart_avoids_a_node_if_another_holds_the_gang() -> None:
    cluster = Cluster(node("n1", gpus=1), node("n2", gpus=1))
    cluster.run("a")

    moved = only(cluster.fail("a", avoid=("n1",)), GangAllocated)
    again = only(cluster.fail("a", avoid=("n1", "n2")), GangAllocated)

    assert moved.nodes[0].node_id == "n2"
    assert again.nodes[0].node_id in {"n1", "n2"}


def test_what_a_job_goes_without_holds_for_all_later_attempts() -> None:
    cluster, samples = Cluster(node()), (SampleRange(first=1440, count=16),)
    cluster.run("a")

    def restarted(left_out: tuple[SampleRange, ...] = ()) -> tuple[SampleRange, ...]:
        return only(cluster.fail("a", left_out=left_out), GangAllocated).left_out

    assert restarted() == ()
    assert restarted(samples) == samples
    assert restarted() == samples, "another failure"
    more = (*samples, SampleRange(first=9, count=1))
    assert restarted(more) == more


def test_cancelling_a_waiting_job_ends_it_at_once() -> None:
    cluster = Cluster()
    cluster.submit("a")

    assert states(cluster.cancel("a")) == ["cancelled"]
    assert cluster.cancel("a") == []


def test_cancelling_a_running_job_lets_its_ranks_save_first() -> None:
    cluster = Cluster(node(gpus=2))
    cluster.run("a", gpus=2, stop_grace_seconds=60)

    asked = cluster.cancel("a")
    half = cluster.exit("a", ExitReason.STOPPED, ranks=[0])
    ended = cluster.exit("a", ExitReason.FINISHED, ranks=[1])

    stop = only(asked, GangStopping)
    assert stop.reason is StopReason.CANCELLED
    assert (stop.deadline - cluster.now).total_seconds() == 60
    assert states(asked) == ["checkpointing"]
    assert states(half) == []
    assert states(ended) == ["cancelled"]


def test_a_gang_that_does_not_stop_is_released_after_its_deadline() -> None:
    cluster = Cluster(node())
    cluster.run("a", stop_grace_seconds=60)
    cluster.cancel("a")

    assert states(cluster.tick(seconds=70)) == []
    assert states(cluster.tick(seconds=10)) == ["cancelled"]


def test_a_gang_without_a_seen_rank_is_released_at_once() -> None:
    cluster = Cluster(node())
    cluster.submit("a")

    assert states(cluster.cancel("a")) == ["checkpointing", "cancelled"]


def test_a_rank_that_dies_while_its_gang_stops_counts_as_stopped() -> None:
    cluster = Cluster(node())
    cluster.run("a")
    cluster.cancel("a")

    assert states(cluster.exit("a", ExitReason.FAILED)) == ["cancelled"]


def test_a_job_that_ran_too_long_is_stopped_and_fails() -> None:
    cluster = Cluster(node())
    cluster.run("a", max_runtime_hours=1)

    assert cluster.tick(seconds=3500) == []
    asked = cluster.tick(seconds=200)
    ended = cluster.exit("a", ExitReason.STOPPED)

    assert only(asked, GangStopping).reason is StopReason.MAX_RUNTIME
    assert only(ended, JobStateChanged).reason == "max_runtime_hours reached (1 h)"


def test_a_clock_that_was_put_back_gives_a_job_no_more_time() -> None:
    cluster = Cluster(node())
    cluster.run("a", max_runtime_hours=1)
    cluster.now -= timedelta(hours=5)
    cluster.fail("a")
    cluster.start("a")

    assert cluster.job("a").ran_s == 0
    assert only(cluster.tick(seconds=3700), GangStopping).reason is StopReason.MAX_RUNTIME


def test_a_stop_by_a_clock_that_was_hours_ahead_ends_by_the_right_one() -> None:
    cluster = Cluster(node())
    cluster.run("a", stop_grace_seconds=60)
    assert only(cluster.cancel("a"), GangStopping).deadline == cluster.now + timedelta(seconds=60)
    cluster.now -= timedelta(hours=5)

    again = only(cluster.tick(seconds=1), GangStopping)
    assert (again.reason, again.deadline) == (
        StopReason.CANCELLED,
        cluster.now + timedelta(seconds=60),
    )
    assert cluster.tick(seconds=60) == []
    assert states(cluster.tick(seconds=20)) == ["cancelled"]


def test_a_clock_that_is_put_back_by_seconds_leaves_a_stop_as_it_is() -> None:
    cluster = Cluster(node())
    cluster.run("a", stop_grace_seconds=60)
    cluster.cancel("a")
    cluster.now -= timedelta(seconds=10)
    assert cluster.tick(seconds=1) == []


@pytest.mark.parametrize("finished", [True, False])
@pytest.mark.parametrize("first", ["node.leaving", "node.left"])
def test_a_leaving_node_lets_its_gangs_save_and_wait_again(*, first: str, finished: bool) -> None:
    """Whichever of the two events is read first."""
    cluster = Cluster(node("n1", gpus=1))
    cluster.run("a")

    left = NodeLeft(node_id="n1", incarnation="i1")
    asked = cluster.leave("n1") if first == "node.leaving" else cluster.give(left)
    assert cluster.leave("n1") == []
    assert cluster.give(left) == []
    reason = ExitReason.FINISHED if finished else ExitReason.STOPPED
    ended = cluster.exit("a", reason)

    assert only(asked, GangStopping).reason is StopReason.DRAIN
    wanted = ["succeeded"] if finished else ["preempted", "pending"]
    assert states(ended) == wanted


def test_submitting_the_same_job_again_changes_nothing() -> None:
    cluster = Cluster(node())
    cluster.submit("a")
    assert cluster.submit("a") == []
    cluster.cancel("a")

    assert cluster.submit("a") == []
