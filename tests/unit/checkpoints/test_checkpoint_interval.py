"""The advised interval: Young and Daly from measured costs and failures, and when it is said."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gangline_checkpoints.core.model import Verified
from gangline_checkpoints.core.policy.interval import (
    CEILING_S,
    FLOOR_S,
    FORGET_GPU_HOURS,
    LONGEST_S,
    OVERLAP,
    PRIOR,
    STORE_SHARE,
    SUSPECTED_S,
    Failures,
    Save,
    advise,
    differs,
    failure_rate,
    optimum_s,
)
from gangline_checkpoints.core.reports import Reports
from gangline_checkpoints.core.state import CheckpointState
from gangline_schemas.events.checkpoints import AttemptEnded, IntervalAdvised
from gangline_schemas.events.faults import CheckpointRequested
from gangline_schemas.events.scheduling import ReleaseReason
from gangline_schemas.limits import MAX_GANG_GPUS, SECONDS_MAX
from gangline_schemas.resources import Resources
from support.builders.checkpoints import (
    JOB,
    allocated,
    checkpoint_run,
    part,
    ref,
    released,
    restored,
)
from support.harnesses.decider_run import START, DeciderRun

PUBLISHED = 1 / (7.9 * 1024)
"""Failures per GPU-hour of the prior."""


def lost_share(interval_s: float, cost_s: float, mtbf_s: float) -> float:
    """Daly's exact model without the time to restart: wall time over work, less 1."""
    per_interval = mtbf_s * math.expm1((interval_s + cost_s) / mtbf_s)
    return per_interval / interval_s - 1


@pytest.mark.parametrize(
    ("cost_s", "mtbf_s", "expected_s"),
    [
        # Young's sqrt(2 * 300 * 86,400) is 7,200 s; Daly's terms and the save itself change it
        (300.0, 24 * 3600.0, 7001.4),
        (60.0, 24 * 3600.0, 3180.1),
        (600.0, 6 * 3600.0, 4699.0),
        (3.0, 28_440.0, 411.1),
        (30.0, 60.0, 41.7),  # 60 * (1 + 1/6 + 1/36) - 30
        (500.0, 100.0, 100.0),  # failures come faster than saves: nothing is better than this
    ],
)
def test_the_optimum_is_dalys(cost_s: float, mtbf_s: float, expected_s: float) -> None:
    assert optimum_s(cost_s, mtbf_s) == pytest.approx(expected_s, abs=0.1)


@given(st.floats(0.01, 1000), st.floats(100, 1e7))
@settings(deadline=None)
def test_no_interval_loses_much_less_than_the_optimum(cost_s: float, mtbf_s: float) -> None:
    if cost_s > mtbf_s / 2:
        return  # there Daly gives a bound, no optimum
    best_s = optimum_s(cost_s, mtbf_s)
    lost = lost_share(best_s, cost_s, mtbf_s)
    others = [lost_share(best_s * 1.02**power, cost_s, mtbf_s) for power in range(-150, 151)]
    assert lost <= min(others) * 1.01


@pytest.mark.parametrize(
    ("cluster", "job", "expected"),
    [
        (Failures(), Failures(), PUBLISHED),
        # as often as published: nothing changes, however much was seen
        (Failures(100, 100 * PRIOR.gpu_hours), Failures(), PUBLISHED),
        # no failure in nine times the prior's hours: a tenth
        (Failures(0, 9 * PRIOR.gpu_hours), Failures(), PUBLISHED / 10),
        # this job failed twice where 2 were worth the prior: (2 + 2) / (2 + 0.02) of the rate
        (Failures(), Failures(2, 0.02 * PRIOR.gpu_hours), PUBLISHED * 4 / 2.02),
        (Failures(), Failures(0, 2 * PRIOR.gpu_hours), PUBLISHED / 2),
    ],
)
def test_the_failure_rate_follows_what_was_seen(
    cluster: Failures, job: Failures, expected: float
) -> None:
    assert failure_rate(cluster, job) == pytest.approx(expected, rel=1e-9)


def test_what_was_seen_long_ago_fades_and_the_rate_stays() -> None:
    before = Failures(100.0, FORGET_GPU_HOURS)
    after = before.plus(Failures(0.0, 1.0))
    assert after.gpu_hours < before.gpu_hours
    assert after.count / after.gpu_hours == pytest.approx(before.count / before.gpu_hours, rel=1e-5)


@pytest.mark.parametrize(
    ("save", "world_size", "limited_by", "interval_s"),
    [
        (Save(0.01, 30.0, 10.0), 1024, "optimum", 412.0),  # cost 3.01 s, a failure each 7.9 h
        (Save(0.01, 30.0, 10.0), 8, "ceiling", CEILING_S),
        (Save(0.001, 0.02, 0.01), 1024, "floor", FLOOR_S),
        (Save(0.5, 200.0, 100.0), 4096, "storage", 600.0),
        (Save(0.5, 600.0, 300.0), 8, "storage", 1800.0),  # above the ceiling: the store is slow
    ],
)
def test_what_limits_the_interval(
    save: Save, world_size: int, limited_by: str, interval_s: float
) -> None:
    advice = advise([save], world_size, PUBLISHED)
    assert (advice.limited_by, advice.interval_s) == (limited_by, interval_s)
    assert advice.mtbf_s == pytest.approx(7.9 * 3600 * 1024 / world_size)
    assert advice.lost_s == interval_s / 2 + save.write_s + save.verify_s


def test_one_slow_save_does_not_change_the_advice() -> None:
    quick, slow = Save(0.0, 10.0, 1.0), Save(60.0, 900.0, 100.0)
    assert advise([quick, quick, slow], 64, PUBLISHED) == advise([quick] * 3, 64, PUBLISHED)
    assert advise([quick, slow, slow], 64, PUBLISHED).limited_by == "storage"


@given(
    st.lists(st.builds(Save, *[st.floats(0, 1e4)] * 3), min_size=1, max_size=8),
    st.integers(1, 16_384),
    st.floats(1e-8, 1.0),
)
def test_an_interval_is_never_short_nor_longer_than_the_store_needs(
    saves: list[Save], world_size: int, rate: float
) -> None:
    advice = advise(saves, world_size, rate)
    assert advice.interval_s >= FLOOR_S
    assert advice.interval_s <= max(CEILING_S, math.ceil(advice.busy_s / STORE_SHARE))
    more_often = advise(saves, world_size, rate * 10)
    assert more_often.interval_s <= advice.interval_s + 1
    suspected = advise(saves, world_size, rate, suspected=True)
    assert FLOOR_S <= suspected.interval_s <= advice.interval_s + 1


def test_it_is_news_from_a_fifth_on() -> None:
    assert [differs(100.0, now) for now in (100.0, 119.0, 81.0, 121.0, 79.0)] == [
        False, False, False, True, True,
    ]  # fmt: skip


# What the service says.


def save(
    run: DeciderRun[CheckpointState, Reports],
    step: int,
    *,
    attempt: int = 1,
    write_s: float = 10.0,
    world_size: int = 2,
) -> list[IntervalAdvised]:
    """One more checkpoint at this cost; what was advised then."""
    for rank in range(world_size):
        written = part(rank, step, attempt=attempt, world_size=world_size)
        run.feed(written.model_copy(update={"write_s": write_s, "blocked_s": 0.01}))
    found = run.done(f"verify:{JOB}:{attempt}:{step}:0", Verified(100, 5, 2.0))
    return [event for event in found if isinstance(event, IntervalAdvised)]


def running() -> DeciderRun[CheckpointState, Reports]:
    run = checkpoint_run()
    run.feed(allocated())
    return run


def test_it_is_advised_from_the_second_save_on_and_again_only_when_it_is_news() -> None:
    run = running()
    assert save(run, 10) == []
    [told] = save(run, 20)
    assert (told.attempt, told.interval_s, told.limited_by) == (1, CEILING_S, "ceiling")
    assert told.cost_s == pytest.approx(0.01 + OVERLAP * 10.0)
    assert told.busy_s == 12.0
    assert told.mtbf_s == pytest.approx(7.9 * 1024 / 2 * 3600, rel=1e-6)
    assert told.risk == ""
    assert told.reason == (
        "a save costs training 1.01 s, and a failure is expected every 4,045 h: "
        "longer would do, but 10 min is the limit"
    )
    for step in range(30, 100, 10):
        assert save(run, step) == []


def test_a_slow_store_makes_it_longer_and_the_risk_is_named() -> None:
    run = running()
    for step in (10, 20, 30):
        save(run, step)
    told = [event for step in range(40, 140, 10) for event in save(run, step, write_s=900.0)]
    assert [event.limited_by for event in told] == ["storage"]
    assert told[0].interval_s > CEILING_S
    assert "the store is slow" in told[0].risk
    assert "further apart than the 10 min" in told[0].risk


def test_the_next_attempt_is_told_at_once_and_failures_make_it_shorter() -> None:
    run = running()
    for step in (10, 20):
        save(run, step, write_s=60.0)
    for attempt in range(2, 9):
        run.now = run.now.replace(day=run.now.day + 1)
        run.feed(released(attempt - 1))
        told = [e for e in run.feed(allocated(attempt)) if isinstance(e, IntervalAdvised)]
        assert [event.attempt for event in told] == [attempt]
        assert told[0].failures == attempt - 1
    ended = run.events(AttemptEnded)
    assert {event.ran_s for event in ended} == {86_400.0}  # type: ignore[attr-defined]
    assert told[0].mtbf_s < 7.9 * 1024 / 2 * 3600 / 2
    job = run.state.jobs[JOB]
    assert (job.failures.count, job.failures.gpu_hours) == (7.0, 7 * 48.0)
    assert run.state.failures == job.failures
    run.take_over()


def sign(run: DeciderRun[CheckpointState, Reports], **changed: Any) -> list[IntervalAdvised]:
    """A node of the gang tells of a sign; what is advised then."""
    asked = CheckpointRequested(
        job_id=JOB, attempt=1, reason="node n: hot", node_id="n", requested_at=run.now
    )
    found = run.feed(asked.model_copy(update=changed))
    return [event for event in found if isinstance(event, IntervalAdvised)]


def test_a_sign_of_a_failure_makes_it_shorter_for_an_hour() -> None:
    run = running()
    for step in (10, 20):
        save(run, step)
    [told] = sign(run)
    assert told.suspected_at == run.now
    assert told.interval_s == math.ceil(optimum_s(told.cost_s, SUSPECTED_S)) < CEILING_S
    assert told.reason == (
        "a save costs training 1.01 s, and a failure is expected every 60 min, as a node reported "
        "a sign of one: least is lost at this interval"
    )
    run.now += timedelta(seconds=SUSPECTED_S - 1)
    assert save(run, 30) == []
    run.now += timedelta(seconds=1)
    [after] = save(run, 40)
    assert (after.interval_s, after.suspected_at) == (CEILING_S, None)
    assert "sign" not in after.reason
    assert save(run, 50) == []
    run.take_over()


def test_another_attempt_begins_without_the_sign() -> None:
    run = running()
    for step in (10, 20):
        save(run, step)
    sign(run)
    run.feed(released())
    [told] = [e for e in run.feed(allocated(2)) if isinstance(e, IntervalAdvised)]
    assert told.suspected_at is None
    assert save(run, 30, attempt=2) == []


@pytest.mark.parametrize(
    "changed",
    [
        {"job_id": "another"},
        {"attempt": 2},
        {"node_id": None},  # a user asked: no sign
        {"requested_at": None},
        {"requested_at": START - timedelta(seconds=SUSPECTED_S)},
        {"requested_at": START + timedelta(seconds=SUSPECTED_S)},  # of a clock that is ahead
    ],
)
def test_what_is_no_sign_for_this_gang(changed: dict[str, Any]) -> None:
    run = running()
    for step in (10, 20):
        save(run, step)
    assert sign(run, **changed) == []
    assert len(sign(run)) == 1


def test_a_sign_before_enough_was_measured_or_after_the_end_advises_nothing() -> None:
    run = running()
    save(run, 10)
    assert sign(run) == []
    save(run, 20)
    run.feed(released())
    assert sign(run) == []


def test_another_world_size_is_measured_anew() -> None:
    run = running()
    for step in (10, 20):
        save(run, step)
    run.feed(released(reason=ReleaseReason.PREEMPTED))
    found = run.feed(allocated(2, world_size=4))
    assert not [event for event in found if isinstance(event, IntervalAdvised)]
    assert save(run, 30, attempt=2, world_size=4) == []
    assert len(save(run, 40, attempt=2, world_size=4)) == 1


@pytest.mark.parametrize(
    ("reason", "failed"),
    [(ReleaseReason.RESTARTING, True)]
    + [(reason, False) for reason in ReleaseReason if reason is not ReleaseReason.RESTARTING],
)
def test_what_counts_as_a_failure(reason: ReleaseReason, failed: bool) -> None:
    run = running()
    run.feed(released(reason=reason))
    assert run.state.failures.count == float(failed)


@pytest.mark.parametrize("cpus", [None, 4])
def test_a_failure_without_gpus_says_nothing_of_their_rate(cpus: int | None) -> None:
    run, gang = checkpoint_run(), allocated()
    if cpus is not None:
        need = Resources.model_validate({"gpus": 0, "cpus": cpus, "memory_gb": 1, "nodes": 2})
        spec = gang.spec.model_copy(update={"resources": need})
        gang = gang.model_copy(update={"spec": spec})
    run.feed(gang)
    run.feed(released(1, ReleaseReason.RESTARTING))
    assert run.state.jobs[JOB].failures.count == 1
    assert run.state.failures.count == (1 if cpus is None else 0)


def test_a_restart_that_a_user_asked_for_is_no_failure() -> None:
    run = running()
    save(run, 10)
    run.feed(restored(1, 10))
    run.feed(released())
    assert run.state.failures.count == 0
    run.feed(allocated(2, resume=ref(1, 10)))
    run.feed(released(2))
    assert run.state.failures.count == 1


def test_an_attempt_before_this_was_recorded_says_nothing_of_its_time() -> None:
    run = running()
    run.state.jobs[JOB].allocated_at = None  # as the fold of an older log leaves it
    run.log.clear()
    run.now = run.now.replace(day=run.now.day + 1)
    [ended] = run.feed(released())
    assert isinstance(ended, AttemptEnded)
    assert ended.ran_s == 0.0


@pytest.mark.parametrize("took_s", [0.0, 5e-324, SECONDS_MAX, 1e308])
def test_whatever_a_rank_says_of_its_save_the_interval_is_at_most_a_day(took_s: float) -> None:
    for save in (Save(took_s, 0, 0), Save(0, took_s, 0), Save(took_s, took_s, took_s / 2)):
        for failures in (Failures(), Failures(1e9, 1.0), Failures(0.0, 1e9)):
            found = advise([save, save], MAX_GANG_GPUS, failure_rate(failures, failures))
            assert FLOOR_S <= found.interval_s <= LONGEST_S
