"""Jobs without GPUs: their room, their order, and when they stop."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import pytest

from gangline_scheduler.core import invariants
from gangline_scheduler.core.cpu_jobs import in_order
from gangline_scheduler.core.outlook import outlook
from gangline_scheduler.core.policy.config import Policy
from gangline_scheduler.core.questions import explain, what_if
from gangline_scheduler.core.snapshot import codec, fingerprint
from gangline_schemas.base import Event
from gangline_schemas.events.faults import FailureCause, NodeFailed
from gangline_schemas.events.quota import DrainAdmitted, TeamConfigured, TeamCpuBudgetChanged
from gangline_schemas.events.scheduling import (
    GangAllocated,
    GangReleased,
    JobWaiting,
    TeamBudgetNoted,
    TeamCpuBudgetNoted,
)
from gangline_schemas.events.workers import ExitReason, NodeJoined
from gangline_schemas.isolation import Isolation
from support.builders.cpu_jobs import cpu_node, cpu_spec, gpu_node, submit
from support.builders.deciding import every, only, spec, team
from support.builders.scheduler import Cluster, node, started_jobs, states, stopped_for


def places(events: Sequence[Event]) -> dict[str, list[str]]:
    return {
        event.job_id: [part.node_id for part in event.nodes]
        for event in every(events, GangAllocated)
    }


def sound(cluster: Cluster) -> None:
    assert invariants.consistent(cluster.state) == []
    assert fingerprint(cluster.replayed()) == fingerprint(cluster.state)


def test_it_runs_on_a_node_without_gpus_first_with_one_rank_on_each_node() -> None:
    cluster = Cluster(gpu_node("a"), cpu_node("n1"), cpu_node("n2"))
    events = submit(cluster, "one")
    (part,) = only(events, GangAllocated).nodes
    assert (part.node_id, part.gpus, list(part.ranks)) == ("n1", (), [0])

    three = only(submit(cluster, "three", cpu_spec(nodes=3)), GangAllocated)
    assert [(part.node_id, part.first_rank) for part in three.nodes] == [
        ("a", 0), ("n1", 1), ("n2", 2),
    ]  # fmt: skip
    assert (three.world_size, three.level) == (3, "rack")
    cluster.start("three")
    assert cluster.job("three").state == "running"
    released = only(cluster.exit("three"), GangReleased)
    assert (released.gpu_seconds, released.cpu_seconds) == (0, 0)
    sound(cluster)


def test_its_nodes_reach_each_other() -> None:
    """Loopback of one machine leads to no other one."""
    ones = [cpu_node("n1"), cpu_node("n2")]
    ones = [info.model_copy(update={"loopback": f"of-{info.node_id}"}) for info in ones]
    cluster = Cluster(*ones, cpu_node("n3"))
    assert places(submit(cluster, "a", cpu_spec(nodes=2))) == {}
    assert "1 could hold it" in explain(cluster.state, "a", cluster.now, Policy()).message
    cluster.give(NodeJoined(node=cpu_node("n4")))
    assert cluster.job("a").gang is not None
    assert [part.node_id for part in cluster.job("a").gang.nodes] == ["n3", "n4"]


def test_cpu_seconds_are_cpus_of_all_nodes_times_the_time() -> None:
    cluster = Cluster(cpu_node("n1"), cpu_node("n2"))
    submit(cluster, "a", cpu_spec(2.5, nodes=2))
    cluster.start("a")
    cluster.now += timedelta(seconds=10)
    assert only(cluster.exit("a"), GangReleased).cpu_seconds == 50
    assert cluster.state.runtimes == {}, "it says nothing of the team's jobs with GPUs"
    assert (cluster.state.used, cluster.state.usage) == ({}, {})


def test_free_gpus_keep_what_jobs_with_gpus_ask_for_and_the_rest_is_given() -> None:
    cluster = Cluster(gpu_node("a", gpus=4, cpus=16))  # keeps 4 CPUs
    assert "12 CPUs" in only(submit(cluster, "large", cpu_spec(13)), JobWaiting).message
    assert started_jobs(submit(cluster, "fits", cpu_spec(12))) == ["fits"]
    cluster.start("fits")
    assert started_jobs(cluster.exit("fits")) == []

    cluster.run("wide", 1, resources={"gpus": 1, "cpus_per_gpu": 3})  # 3 CPUs, and 3 x 3 are kept
    waits = only(submit(cluster, "second", cpu_spec(5)), JobWaiting)
    assert waits.code == "shape"
    assert started_jobs(submit(cluster, "third", cpu_spec(4))) == ["third"]
    sound(cluster)


def test_a_node_keeps_nothing_for_a_gang_that_it_could_never_hold() -> None:
    cluster = Cluster(gpu_node("a", gpus=4, cpus=16), gpu_node("b", gpus=4, cpus=64))
    cluster.submit("greedy", 1, resources={"gpus": 1, "cpus_per_gpu": 256})
    cluster.submit("heavy", 1, resources={"gpus": 1, "memory_per_gpu_gb": 4096})
    assert started_jobs(submit(cluster, "first", cpu_spec(60))) == ["first"]

    cluster.submit("fits-b", 8, resources={"gpus": 8, "cpus_per_gpu": 17})
    assert started_jobs(submit(cluster, "second", cpu_spec(12))) == ["second"]
    sound(cluster)


def test_a_node_keeps_nothing_for_gangs_that_want_other_gpus_or_other_labels() -> None:
    small = gpu_node("a", gpus=4, cpus=16, model="t4")
    large = gpu_node("b", gpus=4, cpus=64, model="h100")
    cluster = Cluster(small, large.model_copy(update={"labels": {"zone": "east"}}))
    cluster.run("gang", 1, resources={"gpus": 1, "cpus_per_gpu": 16, "gpu_type": "h100"})
    east = {"gpus": 8, "cpus_per_gpu": 16}
    cluster.submit("waits", 8, resources=east, node_labels={"zone": "east"})

    assert places(submit(cluster, "fits", cpu_spec(12))) == {"fits": ["a"]}
    assert started_jobs(submit(cluster, "one", cpu_spec(1))) == [], "b keeps all that it has"
    sound(cluster)


def test_memory_is_kept_for_gpus_too() -> None:
    info = gpu_node("a", gpus=4).model_copy(update={"memory_gb": 10.0})
    cluster = Cluster(info)
    assert started_jobs(submit(cluster, "large", cpu_spec(1, 6.5))) == []
    assert started_jobs(submit(cluster, "fits", cpu_spec(1, 6))) == ["fits"]


def test_a_gang_with_gpus_starts_at_once_and_those_in_its_way_stop_the_least_urgent_first() -> None:
    cluster = Cluster(gpu_node("a", gpus=4, cpus=16))
    for name, priority in (("urgent", 10), ("late", 60), ("latest", 60)):
        submit(cluster, name, cpu_spec(4, priority=priority))
        cluster.start(name)
        cluster.now += timedelta(seconds=1)
    events = cluster.submit("gang", 2, resources={"gpus": 2, "cpus_per_gpu": 4})
    assert started_jobs(events)[0] == "gang"
    assert [event.job_id for event in every(events, GangReleased)] == ["latest"]
    assert only(events, GangReleased).reason == "preempted"
    assert cluster.job("latest").state == "pending"
    assert "a has no CPUs or memory left for it beside gangs" in str(list(events))
    assert sorted(cluster.state.cpu_live) == ["late", "urgent"]
    sound(cluster)


def test_one_that_was_stopped_resumes_from_its_checkpoint_when_there_is_room() -> None:
    cluster = Cluster(gpu_node("a", gpus=1, cpus=8))
    submit(cluster, "prepare", cpu_spec(7))
    cluster.start("prepare")
    cluster.commit("prepare", 40)
    cluster.submit("gang", 1, resources={"gpus": 1, "cpus_per_gpu": 8})
    cluster.start("gang")
    assert started_jobs(cluster.tick(60)) == []
    again = only(cluster.exit("gang"), GangAllocated)
    assert (again.job_id, again.attempt) == ("prepare", 2)
    assert again.resume is not None
    assert again.resume.step == 40


def test_the_fewest_cpus_of_a_team_go_first_then_the_oldest() -> None:
    cluster = Cluster(cpu_node("n1", cpus=8))
    submit(cluster, "first", cpu_spec(8))
    cluster.start("first")
    for name, of_team, priority in (
        ("nlp-1", "nlp", 50), ("nlp-2", "nlp", 50), ("cv-1", "cv", 50), ("urgent", "nlp", 5),
    ):  # fmt: skip
        submit(cluster, name, cpu_spec(4, of_team=of_team, priority=priority))
    assert [job.job_id for job in in_order(cluster.state)] == ["urgent", "cv-1", "nlp-1", "nlp-2"]
    assert started_jobs(cluster.exit("first")) == ["urgent", "cv-1"]


def test_a_job_that_waited_long_closes_its_nodes_to_those_behind_it() -> None:
    cluster = Cluster(cpu_node("n1", cpus=8), cpu_node("n2", cpus=8), guard_minutes=30)
    for name in ("a", "b"):
        submit(cluster, name, cpu_spec(5))
        cluster.start(name)
    submit(cluster, "both", cpu_spec(8, nodes=2))
    assert started_jobs(submit(cluster, "small", cpu_spec(1))) == ["small"], "it holds up none yet"
    cluster.now += timedelta(minutes=31)
    assert started_jobs(submit(cluster, "later", cpu_spec(1))) == []
    cluster.start("small")
    for name in ("a", "b", "small"):
        events = cluster.exit(name)
    assert places(events)["both"] == ["n1", "n2"]


def test_cpu_limits_hold_at_each_level_of_the_tree() -> None:
    cluster = Cluster(cpu_node("n1"))
    for config in (
        team("lab", limit=8).model_copy(update={"cpu_limit": 6.0}),
        team("vision", limit=8).model_copy(update={"parent": "lab"}),
    ):
        cluster.give(TeamConfigured(config=config))
    assert started_jobs(submit(cluster, "a", cpu_spec(4, of_team="vision"))) == ["a"]
    waits = only(submit(cluster, "b", cpu_spec(4, of_team="vision")), JobWaiting)
    assert waits.code == "quota"
    assert "lab has 4 of its 6 CPUs" in waits.message
    raised = team("lab", limit=8).model_copy(update={"cpu_limit": 8.0})
    assert started_jobs(cluster.give(TeamConfigured(config=raised))) == ["b"]


def test_a_spent_budget_of_cpu_hours_stops_jobs_without_gpus_alone() -> None:
    cluster = Cluster(gpu_node("a"))
    spent = TeamCpuBudgetChanged(team="nlp", month="2026-11", exhausted=True, spent_cpu_hours=9)
    noted = cluster.give(spent)
    assert [event.type for event in noted] == [TeamCpuBudgetNoted.type]
    assert cluster.give(spent) == []
    assert only(submit(cluster, "a"), JobWaiting).code == "quota"
    assert started_jobs(cluster.submit("gang")) == ["gang"]
    assert every(noted, TeamBudgetNoted) == []
    opened = spent.model_copy(update={"exhausted": False})
    assert started_jobs(cluster.give(opened)) == ["a"]


def test_a_node_keeps_a_rendezvous_port_for_each_gpu_and_no_two_gangs_share_one() -> None:
    cluster = Cluster(node("a", 1, cpus=32, ports=(7001, 7002, 7003)))
    events = [event for name in "bcd" for event in submit(cluster, name, cpu_spec(1))]
    assert started_jobs(events) == ["b", "c"]
    events += cluster.submit("gang")
    ports = [event.rendezvous.port for event in every(events, GangAllocated)]
    assert sorted(ports) == [7001, 7002, 7003]


def test_labels_and_nodes_that_failed_are_kept_off() -> None:
    labelled = cpu_node("n2").model_copy(update={"labels": {"disk": "nvme"}})
    cluster = Cluster(cpu_node("n1"), labelled)
    wanted = cpu_spec(node_labels={"disk": "nvme"})
    assert places(submit(cluster, "a", wanted)) == {"a": ["n2"]}
    cluster.start("a")
    events = cluster.fail("a", cause=FailureCause.NODE, avoid=("n2",))
    assert started_jobs(events) == [], "it never returns to a node that failed"
    submit(cluster, "b")
    cluster.start("b")
    again = cluster.fail("b", avoid=("n1",))
    assert places(again) == {"b": ["n2"]}, "it avoids a node if another one is there"


def test_a_team_apart_never_shares_a_node_that_does_not_mix_teams() -> None:
    cluster = Cluster(gpu_node("a"), policy=Policy(mix_from=Isolation.NAMESPACES))
    assert started_jobs(submit(cluster, "one", cpu_spec(2))) == ["one"]
    assert started_jobs(submit(cluster, "other", cpu_spec(2, of_team="cv"))) == []
    events = cluster.submit("gang", 1, of_team="cv")
    assert started_jobs(events)[0] == "gang"
    assert [event.job_id for event in every(events, GangReleased)] == ["one"]
    assert "other" in started_jobs(events), "its own team's job may join it"


def test_it_drains_stops_at_its_limit_and_survives_a_node_that_leaves() -> None:
    cluster = Cluster(cpu_node("n1"), cpu_node("n2"))
    submit(cluster, "a", cpu_spec(max_runtime_hours=1))
    cluster.start("a")
    assert stopped_for(cluster.leave("n1")) == ["a"]
    moved = cluster.exit("a", ExitReason.STOPPED)
    assert places(moved) == {"a": ["n2"]}
    cluster.start("a")
    cluster.give(DrainAdmitted(node_id="n2", drain=True, user="ada"))
    assert stopped_for(cluster.commit("a", 10, attempt=2)) == ["a"]
    cluster.exit("a", ExitReason.STOPPED)
    assert cluster.job("a").state == "pending"
    cluster.give(DrainAdmitted(node_id="n2", drain=False, user="ada"))
    cluster.start("a")
    assert stopped_for(cluster.tick(3601)) == ["a"]
    assert "failed" in states(cluster.exit("a", ExitReason.STOPPED))
    assert cluster.state.cpu_live == {}
    sound(cluster)


@pytest.mark.parametrize("incarnation", ["i1", "i2"])
def test_a_node_that_comes_back_with_fewer_cpus_has_no_more_in_use(incarnation: str) -> None:
    """Its agent reloaded, or started again: its old gangs count until they are released."""
    cluster = Cluster(cpu_node("n1", cpus=8))
    for name in ("a", "b"):
        submit(cluster, name, cpu_spec(4))
        cluster.start(name)
    less = cpu_node("n1", cpus=5)
    less = less.model_copy(update={"incarnation": incarnation, "release": "0.1.0"})
    events = cluster.give(NodeJoined(node=less))
    assert [event.job_id for event in every(events, GangReleased)] == ["b"]
    assert cluster.job("b").state == "pending"
    sound(cluster)


def test_a_node_that_comes_back_with_fewer_gpus_than_a_gang_has_gives_no_cpus_for_them() -> None:
    cluster = Cluster(gpu_node("a", gpus=8, cpus=12))
    cluster.run("gang", 8)
    back = gpu_node("a", gpus=6, cpus=12, incarnation="i2")
    cluster.give(NodeJoined(node=back))

    waits = only(submit(cluster, "large", cpu_spec(5)), JobWaiting)
    assert waits.code == "shape"
    assert started_jobs(submit(cluster, "fits", cpu_spec(4))) == ["fits"]
    sound(cluster)


def test_a_cancelled_one_leaves_and_the_next_one_starts() -> None:
    cluster = Cluster(cpu_node("n1", cpus=4))
    submit(cluster, "a")
    submit(cluster, "b")
    assert cluster.job("b").waiting is not None
    assert started_jobs(cluster.cancel("a")) == ["b"]
    assert states(cluster.cancel("b"))[-1] == "cancelled"


def test_explain_and_what_if_answer_for_them() -> None:
    cluster = Cluster(gpu_node("a"), cpu_node("n1", cpus=4))
    submit(cluster, "a", cpu_spec(4))
    submit(cluster, "b", cpu_spec(12))
    submit(cluster, "c", cpu_spec(12))
    found = explain(cluster.state, "c", cluster.now, Policy())
    assert found is not None
    assert (found.code, found.position, found.gpus.wanted) == ("capacity", 1, 0)
    later = what_if(cluster.state, cpu_spec(12), cluster.now, Policy())
    never = what_if(cluster.state, cpu_spec(64), cluster.now, Policy())
    assert (later.starts, never.starts, later.gpus) == ("later", "never", 0)
    gang = spec("nlp", 4, resources={"gpus": 4, "cpus_per_gpu": 4})
    (victim,) = what_if(cluster.state, gang, cluster.now, Policy()).preempts
    assert (victim.job_id, victim.gpus, victim.deadline) == ("b", 0, cluster.now)
    cluster.start("a")
    cluster.exit("a")
    now = what_if(cluster.state, cpu_spec(4), cluster.now, Policy())
    assert [part.node_id for part in now.nodes] == ["n1"]


def test_starts_are_expected_when_jobs_without_gpus_end_whatever_gangs_with_gpus_do() -> None:
    cluster = Cluster(gpu_node("a"), cpu_node("n1", cpus=8))
    cluster.run("gang", 4, expected_runtime_hours=0.1)
    submit(cluster, "long", cpu_spec(8, expected_runtime_hours=5))
    submit(cluster, "first", cpu_spec(12, expected_runtime_hours=2))
    assert places(submit(cluster, "next", cpu_spec(12, expected_runtime_hours=1))) == {}
    submit(cluster, "wide", cpu_spec(64))
    began = cluster.now
    starts = {one.job_id: one for one in outlook(cluster.state, began, Policy()).starts}
    assert (starts["next"].position, starts["next"].gpus, starts["wide"].start) == (1, 0, None)
    for job_id in ("next", "wide"):
        found = explain(cluster.state, job_id, began, Policy())
        assert found is not None
        assert found.outlook.eta == starts[job_id].start
    assert found.outlook.eta_reason == "no nodes that are there could hold it beside their GPUs"
    assert starts["next"].start == began + timedelta(hours=2)
    assert starts["next"].nodes == ("a",)
    assert starts["next"].end == began + timedelta(hours=3)


def test_the_limit_of_a_team_says_why_a_start_is_not_expected() -> None:
    cluster = Cluster(cpu_node("n1"))
    limited = team("nlp").model_copy(update={"cpu_limit": 2.0})
    cluster.give(TeamConfigured(config=limited))
    submit(cluster, "a", cpu_spec(4))
    found = explain(cluster.state, "a", cluster.now, Policy())
    assert found is not None
    assert found.outlook.eta_reason == "its team may not have so many CPUs, whichever jobs end"


def test_a_snapshot_of_a_state_without_them_is_read() -> None:
    cluster = Cluster(gpu_node("a"))
    cluster.run("gang")
    kept = codec(cluster.decider.initial)
    old = [line for line in kept.dump(kept.copy(cluster.state)) if not line.startswith(b"cpu_")]
    assert fingerprint(kept.load(old, version=1)) == fingerprint(cluster.state)


def test_a_failed_node_without_gpus_is_forgotten_and_never_expected_back() -> None:
    cluster = Cluster(gpu_node("a"), cpu_node("n1"))
    submit(cluster, "prepare")
    cluster.start("prepare")
    cluster.give(NodeFailed(node_id="n1", incarnation="i1", reason="silent"))
    events = cluster.fail("prepare", cause=FailureCause.NODE, avoid=("n1",))
    assert places(events) == {"prepare": ["a"]}
    sound(cluster)
