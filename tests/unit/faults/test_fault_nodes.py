"""Nodes: which are watched, when silence counts, and when it is our own fault."""

from __future__ import annotations

import sys
from collections import Counter

import pytest

from gangline_faults.core.model import Gang, Health, Liveness
from gangline_faults.core.snapshot import codec
from gangline_faults.core.state import FaultState
from gangline_schemas.events.faults import (
    FailureCause,
    GangFailed,
    GangWatched,
    NodeFailed,
    NodeLeft,
    NodeRecovered,
    NodeSuspected,
    NodeWatched,
)
from gangline_schemas.events.scheduling import NodeAdmitted
from gangline_schemas.events.workers import NodeLeaving
from gangline_schemas.job import JobState
from gangline_schemas.memory import REMEMBERED
from support.builders.faults import (
    PEER_LOST,
    allocated,
    beat,
    ended,
    exited,
    fault_run,
    joined,
    released,
)
from support.harnesses.decider_run import DeciderRun


def cluster(*nodes: str) -> DeciderRun[FaultState, Liveness]:
    run = fault_run()
    for node_id in nodes:
        run.feed(joined(node_id))
    run.tick()
    return run


def live_through(run: DeciderRun[FaultState, Liveness], seconds: int, *alive: str) -> list[object]:
    """Let time pass in steps of 5 s in which only `alive` nodes send heartbeats."""
    found: list[object] = []
    for _ in range(seconds // 5):
        for node_id in alive:
            run.signal(beat(node_id))
        found += run.tick(5)
    return found


def test_a_node_is_watched_once_however_often_it_is_announced() -> None:
    run = fault_run()
    assert run.feed(joined("n1")) == [NodeWatched(node_id="n1", incarnation="a")]
    assert run.feed(joined("n1")) == []
    assert run.feed(NodeAdmitted(node=joined("n1").node)) == []


def test_a_silent_node_is_suspected_at_half_and_failed_at_all_of_the_timeout() -> None:
    run = cluster("n1", "n2", "n3")
    run.feed(allocated(nodes=("n1", "n2")))
    first = live_through(run, 55, "n2", "n3")
    assert [type(event) for event in first] == [NodeSuspected]
    then = live_through(run, 10, "n2", "n3")
    failed, gang = then
    assert failed == NodeFailed(node_id="n1", incarnation="a", reason="silent", silent_s=60)
    assert isinstance(gang, GangFailed)
    assert (gang.cause, gang.action, gang.avoid_nodes) == (FailureCause.NODE, "restart", ("n1",))
    assert live_through(run, 100, "n2", "n3") == []


def test_a_node_that_is_heard_again_recovers() -> None:
    run = cluster("n1", "n2")
    live_through(run, 40, "n2")
    assert live_through(run, 5, "n1", "n2") == [
        NodeRecovered(node_id="n1", incarnation="a", was="suspected")
    ]
    live_through(run, 70, "n2")
    assert live_through(run, 5, "n1", "n2") == [
        NodeRecovered(node_id="n1", incarnation="a", was="failed")
    ]


def test_when_all_are_silent_at_once_nobody_is_declared_dead() -> None:
    run = cluster("n1", "n2", "n3")
    run.feed(allocated())
    live_through(run, 30, "n1", "n2", "n3")
    assert live_through(run, 600) == []


def test_a_node_that_joins_during_a_mass_silence_does_not_end_it() -> None:
    run = cluster("n1", "n2", "n3")
    live_through(run, 30, "n1", "n2", "n3")
    assert live_through(run, 45) == []
    run.feed(joined("n2", "b"))
    assert live_through(run, 25) == []


def test_after_a_mass_silence_every_node_gets_a_new_clock() -> None:
    run = cluster("n1", "n2")
    live_through(run, 10, "n1", "n2")
    live_through(run, 300)
    # n1's heartbeats arrive first; n2 is not failed for the bus's silence
    assert live_through(run, 25, "n1") == []
    assert [type(event) for event in live_through(run, 60, "n1")] == [NodeSuspected, NodeFailed]


def test_a_silence_of_all_is_not_counted_against_a_node_that_was_silent_before() -> None:
    """The bus may have its heartbeats, and its lease is renewed: we receive none of any node."""
    run = cluster("n1", "n2", "n3")
    live_through(run, 10, "n1", "n2", "n3")
    (suspected,) = live_through(run, 35, "n2", "n3")
    assert isinstance(suspected, NodeSuspected)
    assert live_through(run, 20) == []
    # nor once others send again: n1's heartbeats may be the next to be read
    assert live_through(run, 5, "n2") == []
    (failed,) = live_through(run, 20, "n2", "n3")
    # 35 s, mass_silence_s (10 s) of the silence of all, and the 15 since
    assert failed == NodeFailed(node_id="n1", incarnation="a", reason="silent", silent_s=60)


def test_a_silent_node_fails_however_often_nobody_is_heard_for_a_while() -> None:
    run = cluster("n1", "n2")
    live_through(run, 10, "n1", "n2")
    found = [
        event for _ in range(9) for event in live_through(run, 5, "n2") + live_through(run, 15)
    ]
    assert [type(event) for event in found] == [NodeSuspected, NodeFailed]


def test_a_node_whose_heartbeats_are_not_read_yet_is_not_silent() -> None:
    run = cluster("n1", "n2", "n3")
    for unread_s in range(5, 200, 5):
        run.signal(beat("n2"))
        assert run.tick(5, unread_s) == []
    assert live_through(run, 25, "n2", "n3") != [], "it is silent once they are read"


def test_a_partition_that_stays_behind_holds_up_no_verdict_about_nodes_of_others() -> None:
    run = cluster("n1", "n2", "n3")
    for node_id, partition in (("n1", 1), ("n2", 0), ("n3", 0)):
        run.signal(beat(node_id), partition)
    found = []
    for unread_s in range(5, 200, 5):
        run.signal(beat("n2"))
        found += run.tick(5, unread_s)
    assert [(type(event), event.node_id) for event in found] == [
        (NodeSuspected, "n3"),
        (NodeFailed, "n3"),
    ]
    assert live_through(run, 60, "n2") != [], "n1 is silent once its partition is read"


def test_a_single_silent_node_fails() -> None:
    run = cluster("n1")
    found = live_through(run, 70)
    assert [type(event) for event in found] == [NodeSuspected, NodeFailed]


def test_a_takeover_starts_every_clock_anew() -> None:
    run = cluster("n1", "n2", "n3")
    live_through(run, 25, "n2", "n3")
    run.now = run.now.replace(hour=run.now.hour + 3)
    run.take_over()
    assert run.tick() == []
    assert live_through(run, 25, "n2", "n3") == []
    assert [type(event) for event in live_through(run, 60, "n2", "n3")] == [
        NodeSuspected,
        NodeFailed,
    ]


def test_a_process_that_stood_still_blames_nobody() -> None:
    run = cluster("n1", "n2")
    live_through(run, 10, "n1", "n2")
    # paused for two minutes; of the backlog only n1's heartbeats were read before the Tick
    run.now = run.now.replace(minute=run.now.minute + 2)
    run.signal(beat("n1"))
    assert run.tick() == []
    assert live_through(run, 20, "n1", "n2") == []


def test_a_clock_that_jumps_back_blames_nobody() -> None:
    run = cluster("n1", "n2")
    live_through(run, 50, "n1", "n2")
    run.now = run.now.replace(hour=run.now.hour - 1)
    assert live_through(run, 25, "n1") == []
    assert len(live_through(run, 60, "n1")) == 2


def test_a_heartbeat_of_a_stale_incarnation_does_not_count() -> None:
    run = cluster("n1", "n2")
    run.feed(joined("n1", "b"))
    found: list[object] = []
    for _ in range(13):
        run.signal(beat("n1", "a"))
        run.signal(beat("n2"))
        found += run.tick(5)
    assert NodeFailed(node_id="n1", incarnation="b", reason="silent", silent_s=60) in found


def test_a_new_incarnation_means_that_the_old_ranks_are_gone() -> None:
    run = cluster("n1", "n2")
    run.feed(allocated())
    failed, gang, watched = run.feed(joined("n1", "b"))
    assert failed == NodeFailed(node_id="n1", incarnation="a", reason="restarted")
    assert isinstance(gang, GangFailed)
    assert (gang.cause, gang.action, gang.avoid_nodes) == (FailureCause.NODE, "restart", ())
    assert watched == NodeWatched(node_id="n1", incarnation="b")
    # the old announcement, read late from the other topic, brings nothing back
    assert run.feed(NodeAdmitted(node=joined("n1", "a").node)) == []


def test_agents_that_restart_cost_a_look_at_their_own_gangs_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = [f"n{number}" for number in range(60)]
    run = cluster(*names)
    for name in names:
        run.feed(allocated(f"job-{name}", nodes=(name,)))
    looked, places = Counter[int](), Gang.places.fget  # type: ignore[attr-defined]

    def counted(gang: Gang) -> object:
        looked[id(gang)] += 1
        return places(gang)

    monkeypatch.setattr(Gang, "places", property(counted))
    found = [event for name in names for event in run.feed(joined(name, "b"))]
    assert [event.job_id for event in found if isinstance(event, GangFailed)] == [
        f"job-{name}" for name in names
    ]
    assert looked.total() <= 2 * len(names)


def test_where_gangs_are_is_known_through_attempts_and_a_snapshot() -> None:
    run = cluster("n1", "n2", "n3")
    run.feed(allocated(nodes=("n1", "n2")))
    run.feed(allocated("job-2", nodes=("n2",)))
    assert run.state.placed == {"n1": {"job-1"}, "n2": {"job-1", "job-2"}}
    run.feed(allocated(attempt=2, nodes=("n3",)))
    assert run.state.placed == {"n2": {"job-2"}, "n3": {"job-1"}}
    loaded = codec().load([*codec().dump(codec().copy(run.state))])
    assert loaded.placed == run.state.placed
    run.feed(released("job-2"))
    run.feed(ended(state=JobState.SUCCEEDED))
    assert run.state.placed == {}


def test_a_gang_on_an_incarnation_that_is_already_gone_fails_at_once() -> None:
    run = cluster("n1", "n2")
    run.feed(joined("n1", "b"))
    watched, gang = run.feed(allocated())
    assert isinstance(watched, GangWatched)
    assert isinstance(gang, GangFailed)
    assert gang.node_id == "n1"


def test_a_leaving_node_is_not_missed_and_its_gangs_have_not_failed() -> None:
    run = cluster("n1", "n2")
    run.feed(allocated())
    leaving = NodeLeaving(node_id="n1", incarnation="a", reason="maintenance")
    assert run.feed(leaving) == [NodeLeft(node_id="n1", incarnation="a")]
    assert run.feed(leaving) == []
    run.signal(beat("n1"))
    assert live_through(run, 100, "n2") == []


def test_of_nodes_that_left_only_so_many_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Machines of a cloud come and go, each under a name of its own."""
    monkeypatch.setattr("gangline_faults.core.state.LEFT_NODES", 2)
    run = fault_run()
    run.feed(joined("stays"))
    for number in range(5):
        run.feed(joined(f"spot-{number}"))
        run.signal(beat(f"spot-{number}"))
    for number in (3, 0, 1, 4):
        run.feed(NodeLeaving(node_id=f"spot-{number}", incarnation="a", reason="spot"))
    assert set(run.state.nodes) == {"stays", "spot-2", "spot-1", "spot-4"}
    assert set(run.soft.seen) == {"spot-2"}
    run.feed(joined("spot-3", "b"))
    assert run.state.nodes["spot-3"].health is Health.HEALTHY


def test_one_gang_fails_once_when_two_of_its_nodes_go_silent_together() -> None:
    run = cluster("n1", "n2", "n3")
    run.feed(allocated())
    found = live_through(run, 70, "n3")
    gangs = [event for event in found if isinstance(event, GangFailed)]
    assert len(gangs) == 1
    assert gangs[0].avoid_nodes == ("n1", "n2")


def test_many_nodes_that_fail_at_once_are_not_each_compared_with_every_gang() -> None:
    def calls(count: int) -> int:
        """Python functions that are called while so many nodes, each with its gang, fail."""
        lost = [f"n{number}" for number in range(count)]
        run = cluster("alive", *lost)
        for node_id in lost:
            run.feed(allocated(f"job-{node_id}", nodes=(node_id,)))
        live_through(run, 55, "alive")
        run.signal(beat("alive"))
        profile: Counter[str] = Counter()
        sys.setprofile(lambda _frame, event, _argument: profile.update([event]))
        try:
            found = run.tick(5)
        finally:
            sys.setprofile(None)
        assert sum(isinstance(event, GangFailed) for event in found) == count
        return profile["call"]

    assert calls(200) < 4.5 * calls(50)  # four times as many


def test_a_lone_node_is_not_blamed_for_our_own_pause() -> None:
    run = cluster("n1")
    live_through(run, 10, "n1")
    assert run.tick(120) == []  # its heartbeats of that time are still unread
    assert live_through(run, 10, "n1") == []


def test_a_gang_that_settles_in_the_tick_that_fails_its_node_fails_once() -> None:
    run = cluster("n1", "n2", "n3")
    run.feed(allocated())
    live_through(run, 55, "n2", "n3")
    run.feed(exited(1, code=1, message=PEER_LOST))
    gangs = [event for event in live_through(run, 5, "n2", "n3") if isinstance(event, GangFailed)]
    assert [event.cause for event in gangs] == [FailureCause.NODE]


def test_a_node_that_failed_is_forgotten_after_the_time_of_all_services() -> None:
    run = cluster("n1", "n2")
    live_through(run, 70, "n2")
    run.tick(REMEMBERED.total_seconds())
    assert "n1" in run.state.nodes
    run.feed(joined("n3"))
    assert set(run.state.nodes) == {"n2", "n3"}
    assert not run.state.gone


def test_a_node_that_came_back_is_not_forgotten() -> None:
    run = cluster("n1", "n2")
    live_through(run, 70, "n2")
    live_through(run, 5, "n1", "n2")
    run.tick(REMEMBERED.total_seconds())
    run.feed(joined("n3"))
    assert "n1" in run.state.nodes


def test_a_node_that_beats_and_is_not_known_is_told_so_once() -> None:
    run = cluster("n2")
    assert live_through(run, 55, "n1", "n2") == []
    assert live_through(run, 10, "n1", "n2") == [
        NodeFailed(node_id="n1", incarnation="a", reason="forgotten")
    ]
    assert "n1" not in run.state.nodes


def test_a_node_that_joins_late_is_told_nothing() -> None:
    run = cluster("n2")
    live_through(run, 55, "n1", "n2")
    run.feed(joined("n1"))
    assert live_through(run, 60, "n1", "n2") == []


def test_a_node_that_does_not_offer_its_gpus_is_no_stranger() -> None:
    run = cluster("n2")
    waits = beat("n1").model_copy(update={"joined": False})
    for _ in range(20):
        run.signal(beat("n2"))
        run.signal(waits)
        assert run.tick(5) == []
