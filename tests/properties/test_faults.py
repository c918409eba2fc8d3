"""Whatever the order and however often: one verdict per attempt, no crash, replay is equal."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from gangline_schemas.base import Event
from gangline_schemas.events.faults import GangFailed, IncidentClosed
from gangline_schemas.events.scheduling import NodeCordoned
from gangline_schemas.events.workers import ExitReason, NodeLeaving
from support.builders.faults import (
    PEER_LOST,
    allocated,
    beat,
    committed,
    ended,
    exited,
    fault_run,
    joined,
    moved,
    released,
)


def leaving(node_id: str, incarnation: str) -> NodeLeaving:
    return NodeLeaving(node_id=node_id, incarnation=incarnation, reason="spot")


def drained(node_id: str, incarnation: str) -> NodeCordoned:
    return NodeCordoned(node_id=node_id, incarnation=incarnation, reason="drain", move_jobs=True)


JOBS = st.sampled_from(["job-1", "job-2"])
ATTEMPTS = st.integers(1, 3)
NODES = st.sampled_from(["n1", "n2", "n3"])
INCARNATIONS = st.sampled_from(["a", "b"])
EXITS = st.one_of(
    st.builds(
        exited,
        rank=st.integers(0, 1),
        job_id=JOBS,
        attempt=ATTEMPTS,
        reason=st.sampled_from(ExitReason),
        code=st.sampled_from([None, 0, 1, 78, 137]),
        signal=st.sampled_from([None, 6, 9]),
        message=st.sampled_from(["", PEER_LOST, "ValueError"]),
        last_step=st.sampled_from([None, 5, 30]),
    )
)
INPUTS = st.one_of(
    st.builds(joined, NODES, INCARNATIONS),
    st.builds(
        allocated,
        job_id=JOBS,
        attempt=ATTEMPTS,
        incarnation=INCARNATIONS,
        nodes=st.sampled_from([("n1", "n2"), ("n2", "n3"), ("n3",)]),
    ),
    st.builds(released, JOBS, ATTEMPTS),
    st.builds(ended, JOBS),
    st.builds(moved, ATTEMPTS),
    st.builds(committed, st.sampled_from([10, 20]), ATTEMPTS, JOBS),
    st.builds(drained, NODES, INCARNATIONS),
    st.builds(leaving, NODES, INCARNATIONS),
    EXITS,
)
STEPS = st.lists(
    st.one_of(
        INPUTS,
        INPUTS,
        st.builds(beat, NODES, INCARNATIONS),
        st.sampled_from([1.0, 2.0, 31.0, 61.0, 700.0]),
        st.just("take over"),
    ),
    max_size=40,
)


@given(STEPS)
@settings(max_examples=300, deadline=None)
def test_one_verdict_per_attempt_and_equal_replay(steps: list[Event | float | str]) -> None:
    run = fault_run()
    for step in steps:
        if isinstance(step, float):
            run.tick(step)
        elif isinstance(step, str):
            run.take_over()
        elif step.type == "worker.heartbeat":
            run.signal(step)
        else:
            run.feed(step)
            assert run.feed(step) == [], "a duplicate led to something"
    verdicts = Counter(
        (event.job_id, event.attempt)
        for event in run.events(GangFailed)
        if isinstance(event, GangFailed)
    )
    assert all(count == 1 for count in verdicts.values())
    incidents = Counter(
        (event.job_id, event.attempt)
        for event in run.events(IncidentClosed)
        if isinstance(event, IncidentClosed)
    )
    assert all(count == 1 for count in incidents.values())
    waiting = {(job, held.failed.attempt) for job, held in run.state.incidents.items()}
    assert not waiting & set(incidents)
    assert waiting | set(incidents) == set(verdicts)
    run.take_over()
