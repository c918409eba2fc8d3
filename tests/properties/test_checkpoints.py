"""Any interleaving of ranks, attempts, outcomes and takeovers keeps the invariants."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from gangline_checkpoints.core.model import (
    Away,
    Corrupt,
    Delete,
    Refused,
    Removed,
    Scrub,
    Scrubbed,
    Verified,
)
from gangline_schemas.base import Event
from gangline_schemas.checkpoint_policy import BestCheckpoint, Retention
from gangline_schemas.events.scheduling import ReleaseReason
from gangsim.checkpoint_log import log_violations
from support.builders.checkpoints import (
    allocated,
    checkpoint_run,
    ended,
    lost,
    on_node,
    part,
    ref,
    released,
    restored,
)

JOBS = st.sampled_from(["job-1", "job-2"])
ATTEMPTS = st.integers(1, 3)
STEPS = st.sampled_from([10, 20, 30])
KEEP = st.sampled_from(
    [
        Retention(latest=1),
        Retention(latest=1, best=BestCheckpoint(metric="loss")),
        Retention(latest=1, every=20),
    ]
)
PARTS = st.builds(
    part,
    st.integers(0, 1),
    STEPS,
    attempt=ATTEMPTS,
    job_id=JOBS,
    metrics=st.sampled_from([{"loss": 1.0}, {"loss": 2.0}]),
)
INPUTS = st.one_of(
    PARTS,
    PARTS,
    PARTS,
    st.builds(
        allocated,
        ATTEMPTS,
        job_id=JOBS,
        keep=KEEP,
        resume=st.one_of(st.none(), st.builds(ref, ATTEMPTS, STEPS, job_id=JOBS)),
    ),
    st.builds(on_node, st.integers(0, 1), step=STEPS, attempt=ATTEMPTS, job_id=JOBS),
    st.builds(lost, st.integers(0, 1), STEPS, attempt=ATTEMPTS, job_id=JOBS),
    st.builds(released, ATTEMPTS, st.sampled_from(ReleaseReason), job_id=JOBS),
    st.builds(restored, ATTEMPTS, STEPS, job_id=JOBS),
    st.builds(ended, JOBS),
)
OUTCOMES = st.sampled_from(
    [Verified(1, 5, 0.0)] * 4 + [Away("away"), Corrupt("k", "r"), Refused("no")]
)
ACTIONS = st.lists(
    st.one_of(
        INPUTS,
        INPUTS,
        INPUTS,
        st.tuples(st.integers(0, 3), OUTCOMES),
        st.tuples(st.integers(0, 3), OUTCOMES),
        st.sampled_from([1.0, 601.0, 90_000.0]),
        st.just("take over"),
    ),
    max_size=60,
)


@given(ACTIONS)
@settings(max_examples=300, deadline=None)
def test_invariants_hold_and_replay_is_equal(
    actions: list[Event | float | str | tuple[int, object]],
) -> None:
    run = checkpoint_run()
    for action in actions:
        if isinstance(action, float):
            run.tick(action)
        elif isinstance(action, str):
            run.take_over()
        elif isinstance(action, tuple):
            number, outcome = action
            wanted = sorted(run.effects().items())
            if wanted:
                key, effect = wanted[number % len(wanted)]
                run.done(key, _fitting(effect, outcome))
        else:
            run.feed(action)
            assert run.feed(action) == [], "a duplicate led to something"
    assert log_violations(decision.event for decision, _ in run.log) == []
    run.take_over()


def _fitting(effect: object, outcome: object) -> object:
    if isinstance(effect, Delete) and not isinstance(outcome, Away):
        return Removed(1)
    if isinstance(effect, Scrub) and isinstance(outcome, Verified | Refused):
        return Scrubbed(1, 0.0)
    return outcome


@given(st.permutations([(rank, step) for step in (10, 20, 30) for rank in (0, 1)]))
@settings(deadline=None)
def test_in_any_order_of_ranks_the_newest_step_is_committed(order: list[tuple[int, int]]) -> None:
    run = checkpoint_run()
    run.feed(allocated())
    for rank, step in order:
        run.feed(part(rank, step))
        for key, effect in run.effects().items():
            run.done(key, Removed(1) if isinstance(effect, Delete) else Verified(1, 5, 0.0))
    while run.effects():
        for key, effect in run.effects().items():
            run.done(key, Removed(1) if isinstance(effect, Delete) else Verified(1, 5, 0.0))
    assert run.state.jobs["job-1"].kept[-1].id.step == 30
    assert run.state.jobs["job-1"].open == {}
