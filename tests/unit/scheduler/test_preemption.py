"""Preemption: whom an urgent job may have stopped, at what cost, and who gets the GPUs then."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from random import Random

import pytest

from gangline_bus.decision import InvariantViolated
from gangline_scheduler.core.allocate import allocate
from gangline_scheduler.core.invariants import reserved_gpus_are_coming, takes_no_reserved_gpus
from gangline_scheduler.core.model import ReservedGpus
from gangline_scheduler.core.plan import Plan
from gangline_scheduler.core.policy.config import Policy
from gangline_scheduler.core.policy.placement import Part, Placement
from gangline_scheduler.core.policy.session import Session
from gangline_schemas.events.scheduling import (
    GangAllocated,
    GangStopping,
    GpusUnreserved,
    JobWaiting,
)
from gangline_schemas.events.workers import ExitReason
from gangline_schemas.job import JobState
from support.builders.deciding import every, only
from support.builders.preemption import HOUR, RUNS, URGENT, reservation, running, stopped
from support.builders.scheduler import Cluster, node, started_jobs

# --- the flow ------------------------------------------------------------------------------


def test_an_urgent_job_has_others_stopped_and_gets_their_gpus() -> None:
    cluster = running("a", "b", "c", "d")

    asked = cluster.submit("u", 2, **URGENT)
    first = cluster.exit(stopped(asked)[0], ExitReason.STOPPED)
    second = cluster.exit(stopped(asked)[1], ExitReason.STOPPED)

    event = reservation(asked)
    assert (event.job_id, event.reason) == ("u", "preempt")
    assert [(share.node_id, share.gpus) for share in event.nodes] == [("n1", 2)]
    assert sorted(event.victims) == stopped(asked)
    # two GPUs, each for 30 s of saving, an hour since it started, 60 s of restarting; and the two
    # that wait for up to 120 s of grace, not only for 30
    assert event.cost_gpu_seconds == 2 * (30 + HOUR + 60) + 2 * 90
    # two GPUs for the 19 hours that the others still need, less the time to save
    assert event.value_gpu_seconds == pytest.approx(2 * (19 * HOUR - 30))
    assert started_jobs(first) == [], "half of what is held is not enough"
    assert started_jobs(second) == ["u"]
    assert only(second, GpusUnreserved).job_id == "u"
    assert all(cluster.job(name).preemptions == 1 for name in event.victims)


def test_a_clock_that_was_hours_ahead_and_is_corrected_delays_no_preemption() -> None:
    cluster = running("a", gpus=4)
    cluster.now -= timedelta(hours=6)

    assert stopped(cluster.submit("u", 4, **URGENT)) == ["a"]


def test_the_victims_are_asked_to_save_first_and_have_their_own_grace() -> None:
    cluster = running("a", gpus=4, stop_grace_seconds=300)

    asked = cluster.submit("u", 4, **URGENT)

    stop = only(asked, GangStopping)
    assert stop.deadline == cluster.now + timedelta(seconds=300)
    assert reservation(asked).until > stop.deadline
    assert cluster.job("a").state is JobState.CHECKPOINTING


def test_nobody_steals_what_is_held_while_victims_leave() -> None:
    cluster = running("a", "b", "c", "d")
    asked = cluster.submit("u", 2, **URGENT)
    gone, last = stopped(asked)

    freed = cluster.exit(gone, ExitReason.STOPPED)

    assert started_jobs(freed) == [], "the victim itself waits first, and may not take it back"
    assert started_jobs(cluster.submit("thief", 1, priority=20)) == []
    assert started_jobs(cluster.tick(seconds=5)) == []
    assert started_jobs(cluster.exit(last, ExitReason.STOPPED)) == ["u"]


def test_of_two_that_wait_for_gpus_of_one_node_the_first_is_not_held_up_by_the_second() -> None:
    cluster = running("a", "b", "c", "d")
    first = stopped(cluster.submit("u", 2, **URGENT))
    cluster.now += timedelta(seconds=1)
    second = stopped(cluster.submit("t", 1, **URGENT))

    assert started_jobs(cluster.exit(second[0], ExitReason.STOPPED)) == []
    assert started_jobs(cluster.exit(first[0], ExitReason.STOPPED)) == ["u"]
    assert started_jobs(cluster.exit(first[1], ExitReason.STOPPED)) == ["t"]


def test_a_victim_that_does_not_leave_ends_soon_after_its_deadline() -> None:
    cluster = running("a", gpus=4, stop_grace_seconds=10)
    cluster.submit("u", 4, **URGENT)

    assert started_jobs(cluster.tick(seconds=20)) == []
    assert started_jobs(cluster.tick(seconds=10)) == ["u"]


def test_a_late_tick_still_starts_the_job_on_what_was_held() -> None:
    cluster = running("a", gpus=4, stop_grace_seconds=10)
    cluster.submit("u", 4, **URGENT)

    assert started_jobs(cluster.tick(seconds=HOUR)) == ["u"]


def test_a_victim_that_fails_makes_room_as_well() -> None:
    cluster = running("a", gpus=4)
    cluster.submit("u", 4, **URGENT)

    assert started_jobs(cluster.fail("a")) == ["u"]
    assert cluster.job("a").state is JobState.PENDING


def test_the_hold_ends_with_the_job_and_the_victims_go_on() -> None:
    cluster = running("a", gpus=4)
    cluster.submit("u", 4, **URGENT)

    assert only(cluster.cancel("u"), GpusUnreserved).job_id == "u"
    assert started_jobs(cluster.exit("a", ExitReason.STOPPED)) == ["a"]


def test_the_hold_ends_when_its_node_takes_no_gangs_any_more() -> None:
    cluster = running("a", gpus=4)
    cluster.submit("u", 4, **URGENT)
    cluster.leave("n1")

    assert only(cluster.tick(seconds=1), GpusUnreserved).job_id == "u"


def test_the_waiting_job_is_told_that_others_make_room() -> None:
    cluster = running("a", "b", "c", "d")

    asked = cluster.submit("u", 2, **URGENT)
    told = [event.message for event in every(asked, JobWaiting) if event.job_id == "u"]

    assert len(told) == 1
    assert told[0].startswith("2 gangs save and make room for it; it starts by ")
    assert every(cluster.tick(seconds=60), JobWaiting) == []


def test_what_is_asked_for_once_is_not_asked_for_again() -> None:
    cluster = running("a", "b", "c", "d")
    cluster.submit("u", 2, **URGENT)

    assert stopped(cluster.tick(seconds=1)) == []


def test_a_job_that_becomes_urgent_is_helped_on_the_next_tick() -> None:
    cluster = running("a", gpus=4)
    cluster.submit("u", 4, expected_runtime_hours=1)
    assert stopped(cluster.tick()) == []

    cluster.prioritize("u", 5)

    assert stopped(cluster.tick(seconds=1)) == ["a"]


def test_the_invariants_see_a_theft() -> None:
    cluster = running("a", "b", "c", "d")
    asked = cluster.submit("u", 2, **URGENT)
    cluster.exit(stopped(asked)[0], ExitReason.STOPPED)
    thief = cluster.submit("t", 1)
    spare = next(node.node_id for node in cluster.state.free.nodes())
    theft = every([d.event for d, _ in cluster.log], GangAllocated)[0].model_copy(
        update={"job_id": "t", "attempt": 1}
    )

    assert started_jobs(thief) == []
    told = f"t took GPUs of {spare} that are reserved"
    assert takes_no_reserved_gpus(cluster.state, theft) == [told]
    taken = Placement(tuple(Part(at.node_id, at.gpus) for at in theft.nodes), "node")
    with pytest.raises(InvariantViolated, match=told):
        allocate(Plan(cluster.state, cluster.now), cluster.job("t"), taken)
    cluster.state.reserved["u"] = replace(cluster.state.reserved["u"], nodes=(("n1", 3),))
    assert reserved_gpus_are_coming(cluster.state) == [
        "3 GPUs of n1 are reserved for gangs that wait; 1 are free and 1 become so"
    ]


# --- what is looked at first ---------------------------------------------------------------


@pytest.mark.parametrize("seed", range(8))
def test_no_job_finds_more_free_gpus_than_come(seed: int) -> None:
    """Jobs that more could not help are passed over before anything is tried for them."""
    draw = Random(seed)
    cluster = Cluster(*(node(f"n{number}", gpus=4) for number in range(3)))
    for number in range(8):
        cluster.run(f"r{number}", draw.choice((1, 1, 2)), **RUNS)
    cluster.tick(seconds=HOUR)
    asked = 0
    for number in range(4):
        urgent = {**URGENT, "priority": draw.choice((5, 10, 50))}
        cluster.submit(f"w{number}", draw.choice((1, 2, 4, 8)), **urgent)
        cluster.tick(seconds=draw.choice((1, 40)))
        harness = Session(cluster.state, cluster.now, Policy())
        for job_id in cluster.state.pending:
            question = harness.question(cluster.job(job_id))
            if question is not None:
                asked += 1
                assert question.demand.gpus == question.job.fewest
                assert question.snapshot.free_gpus <= harness.coming_gpus
    assert asked > 0


def test_the_invariants_count_what_a_gang_that_moves_has_already() -> None:
    cluster = running("a", "b")
    allocated = only(cluster.submit("t", 1), GangAllocated)
    cluster.exit("t")
    until = cluster.now + timedelta(minutes=1)

    def taken_beside(allocated_gpus: int) -> list[str]:
        cluster.state.reserved["a"] = ReservedGpus((("n1", allocated_gpus),), until, "resize")
        return takes_no_reserved_gpus(cluster.state, allocated)

    assert cluster.state.free_gpus == 2
    assert taken_beside(allocated_gpus=2) == [], "one of them it has, one is free, one is left"
    assert taken_beside(allocated_gpus=3) == ["t took GPUs of n1 that are reserved"]
