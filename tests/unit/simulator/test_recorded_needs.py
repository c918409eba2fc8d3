"""What a recorded log says of its jobs: lost work, causes of failures, needs, restores."""

from __future__ import annotations

import math
from datetime import timedelta

import pytest

from gangline_scheduler.core.decide import Scheduler
from gangline_scheduler.core.policy.config import Policy
from gangline_scheduler.core.policy.configured import Limits
from gangline_schemas.events.faults import FailureCause, NodeFailed, NodeRecovered
from gangline_schemas.events.quota import CancelAdmitted, DrainAdmitted
from gangline_schemas.events.workers import ExitReason, NodeJoined
from gangline_simulator.compare import figures
from gangline_simulator.history import read_history
from gangline_simulator.recorded import Failure, read_recording
from gangline_simulator.versus import versus
from support.builders.recorded import again, starts, written
from support.builders.scheduler import Cluster, node


def stopped_once(*, saved: bool) -> Cluster:
    """300 s on a node that leaves, 40 s to stop, then 500 s on another."""
    cluster = Cluster(node("n1", 1), node("n2", 1))
    cluster.run("a")
    place = cluster.job("a").gang
    assert place is not None
    cluster.tick(300)
    cluster.leave(place.nodes[0].node_id)
    cluster.tick(40)
    if saved:
        cluster.commit("a", 7)
    cluster.exit("a", ExitReason.STOPPED)
    cluster.start("a")
    cluster.tick(500)
    cluster.exit("a")
    return cluster


@pytest.mark.parametrize(("saved", "work_s"), [(True, 800.0), (False, 500.0)])
def test_a_stop_loses_what_was_not_saved(saved: bool, work_s: float) -> None:
    log = written(stopped_once(saved=saved))
    need = read_recording(log).needs["a"]
    assert (need.work_s, need.stops_s, need.saves) == (work_s, (40.0,), saved)
    found = figures({"recorded": read_history(log)}, ["a"])[0]
    lost_s = 40.0 if saved else 340.0
    assert (found.preemptions, found.gpu_hours_lost) == (1, pytest.approx(lost_s / 3600))
    assert (found.jct_avg_s, found.queue_avg_s) == (840.0, 0.0)
    assert found.utilization == pytest.approx(840 / (2 * 300 + 540))


def test_a_gang_that_was_stopped_before_its_ranks_started_has_not_started_by_then() -> None:
    cluster = Cluster(node("n1", 1), node("n2", 1))
    cluster.submit("a")
    cluster.tick(0)
    place = cluster.job("a").gang
    assert place is not None
    cluster.tick(20)
    cluster.leave(place.nodes[0].node_id)
    cluster.tick(1)
    cluster.tick(5)
    cluster.start("a")
    cluster.tick(500)
    cluster.exit("a")
    log = written(cluster)
    first, second = read_recording(log).needs["a"].starts_s
    assert first > 20.0 > second
    assert starts(again(log, Policy())) == starts(log)


@pytest.mark.parametrize("upgraded", ["the agent", "the scheduler"])
def test_an_outdated_node_takes_no_gangs_in_the_rerun_either(upgraded: str) -> None:
    """Until its agent is upgraded, whatever is drained meanwhile; its gangs continue."""
    cluster = Cluster(node("n1", 2))
    cluster.run("a")
    if upgraded == "the scheduler":
        cluster.decider = Scheduler(Limits(oldest_agents="0.3.0"))
        cluster.tick(10)
    else:
        cluster.decider = Scheduler(Limits(oldest_agents="0.3.0"))
        cluster.give(NodeFailed(node_id="n1", incarnation="i1", reason="silent"))
        cluster.fail("a", cause=FailureCause.NODE)
        cluster.give(NodeRecovered(node_id="n1", incarnation="i1", was="failed"))
    cluster.submit("b")
    cluster.tick(100)
    for on in (True, False):
        cluster.give(DrainAdmitted(node_id="n1", drain=on, move_jobs=False, user="ada"))
        cluster.tick(100)
    cluster.give(NodeJoined(node=node("n1", 2, release="0.3.0")))
    for job_id in ("a", "b"):
        cluster.start(job_id)
        cluster.tick(300)
        cluster.exit(job_id)
    log = written(cluster)
    late = cluster.log[0][1] + timedelta(seconds=300)
    assert min(starts(log)["b"]) >= late
    assert starts(again(log, Policy())) == starts(log)


def failing(first_s: float, second_s: float, *, lose_node: bool = False) -> Cluster:
    """An attempt that fails after a checkpoint at 100 s, and one that succeeds."""
    cluster = Cluster(node("n1", 1), node("n2", 1))
    cluster.run("a")
    gang = cluster.job("a").gang
    assert gang is not None
    cluster.tick(100)
    if not lose_node:
        cluster.tick(first_s - 100)
    else:
        cluster.commit("a", 3)
        cluster.tick(first_s - 100)
        at = gang.nodes[0].node_id
        cluster.give(NodeFailed(node_id=at, incarnation="i1", reason="silent"))
    cluster.fail("a", cause=FailureCause.NODE if lose_node else FailureCause.PROCESS)
    cluster.start("a")
    cluster.tick(second_s)
    cluster.exit("a")
    return cluster


def test_a_failure_belongs_to_the_job_or_to_the_node_that_was_gone() -> None:
    of_the_job = read_recording(written(failing(250, 600))).needs["a"]
    assert of_the_job.failures == (Failure(250.0, (), False),)
    assert of_the_job.work_s == 600.0
    of_the_node = read_recording(written(failing(250, 600, lose_node=True))).needs["a"]
    assert of_the_node.failures == ()
    assert (of_the_node.work_s, of_the_node.saves_at) == (700.0, (100.0,))


def test_who_needs_less_after_a_failure_than_before_keeps_its_progress_itself() -> None:
    need = read_recording(written(failing(900, 200))).needs["a"]
    assert (need.work_s, need.keeps_itself) == (1100.0, True)


def test_jobs_of_which_the_log_does_not_hold_the_need() -> None:
    cluster = Cluster(node("n1", 1))
    cluster.run("limited", max_runtime_hours=0.1)
    cluster.submit("given-up")
    cluster.submit("says-nothing")
    cluster.tick(1)
    cluster.submit("says", expected_runtime_hours=0.5)
    cluster.submit("starts-from-nothing", resume_from="nobody")
    cluster.tick(59)
    cluster.cancel("given-up")
    cluster.tick(301)  # one second above 0.1 h
    cluster.tick(10)
    cluster.exit("limited", ExitReason.STOPPED)
    cluster.start("says-nothing")
    cluster.tick(100)
    recording = read_recording(written(cluster))
    assert {job_id: need.work_s for job_id, need in recording.needs.items()} == {
        "limited": math.inf,
        "given-up": math.inf,
        "says-nothing": math.inf,
        "says": 1800.0,
    }
    asked = [entry for entry in recording.inputs if isinstance(entry.event, CancelAdmitted)]
    assert [(entry.event.job_id, entry.at) for entry in asked] == [  # type: ignore[attr-defined]
        ("given-up", recording.start + timedelta(seconds=60))
    ]
    found = versus(written(cluster), ["fair"])
    assert [(job.job_id, job.allocated_gpus) for job in found.unended] == [
        ("says-nothing", 1),
        ("says", 0),
    ]
    assert found.differences["fair"] == ()
    assert [column.ended for column in found.columns] == [2, 2]


def test_a_run_that_validated_a_checkpoint_is_one_among_others() -> None:
    cluster = Cluster(node("n1", 1))
    cluster.run("a")
    cluster.commit("a", 10)
    cluster.tick(100)
    cluster.exit("a")
    cluster.run("b", resume_from="a", validates=True, checkpoint={"resume": "10"})
    cluster.tick(50)
    cluster.exit("b")
    recording = read_recording(written(cluster))
    assert {job_id: need.work_s for job_id, need in recording.needs.items()} == {
        "a": 100.0,
        "b": 50.0,
    }
    assert versus(written(cluster), ["fair"]).differences["fair"] == ()


def test_a_restore_is_work_that_was_wanted_again() -> None:
    cluster = Cluster(node("n1", 1))
    cluster.run("a")
    cluster.tick(100)
    cluster.commit("a", 1)
    cluster.tick(100)
    cluster.restore("a", 1)
    cluster.tick(10)
    cluster.exit("a", ExitReason.STOPPED)
    cluster.start("a")
    cluster.tick(300)
    cluster.exit("a")
    need = read_recording(written(cluster)).needs["a"]
    assert (need.work_s, need.failures) == (500.0, ())


def test_jobs_without_gpus_are_left_out_and_change_no_other() -> None:
    """They stop for the gang, which the log has as it would be without them."""
    logs = []
    for without in (False, True):
        cluster = Cluster(node("n1", 2, cpus=8, ports=tuple(range(7001, 7020))))
        if without:
            need = {"gpus": 0, "cpus": 6, "memory_gb": 1}
            cluster.submit("prepare", resources=need)
            cluster.start("prepare")
        cluster.tick(60)
        cluster.run("gang", 2, resources={"gpus": 2, "cpus_per_gpu": 4})
        assert ("prepare" in cluster.state.cpu_pending) == without
        cluster.tick(600)
        cluster.exit("gang")
        logs.append(written(cluster))
    plain, mixed = (read_recording(log) for log in logs)
    assert (set(mixed.needs), mixed.needs) == ({"gang"}, plain.needs)
    assert len(mixed.inputs) == len(plain.inputs)
