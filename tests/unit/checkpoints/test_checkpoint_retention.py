"""What is kept: the newest N, the best, and those that jobs started from."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from gangline_checkpoints.core.model import Kept, Removed, StepId
from gangline_checkpoints.core.policy.retention import surplus
from gangline_checkpoints.core.reports import Reports
from gangline_checkpoints.core.state import CheckpointState
from gangline_schemas.checkpoint_policy import BestCheckpoint, Retention
from gangline_schemas.events.checkpoints import (
    CheckpointCorrupted,
    CheckpointDeleted,
    RestoreNoted,
    ResumeNoted,
)
from gangline_schemas.events.scheduling import CheckpointRef, ReleaseReason, ResumePointChanged
from gangsim.checkpoint_log import log_violations
from support.builders.checkpoints import (
    JOB,
    allocated,
    checkpoint_run,
    commit,
    ended,
    ref,
    released,
    restored,
    resumes,
)
from support.harnesses.decider_run import DeciderRun


def running(
    keep: Retention, resume: CheckpointRef | None = None
) -> DeciderRun[CheckpointState, Reports]:
    run = checkpoint_run()
    run.feed(allocated(keep=keep, resume=resume))
    return run


def steps(run: DeciderRun[CheckpointState, Reports], job_id: str = JOB) -> list[int]:
    job = run.state.find(job_id)
    return [] if job is None else [kept.id.step for kept in job.kept]


def test_the_newest_n_are_kept_and_the_rest_deleted() -> None:
    run = running(Retention(latest=2))
    for step in (10, 20, 30, 40):
        commit(run, step)
    assert steps(run) == [30, 40]
    assert list(run.effects()) == [f"delete:{JOB}:1:10:0"]
    run.done(f"delete:{JOB}:1:10:0", Removed(5))
    assert list(run.effects()) == [f"delete:{JOB}:1:20:0"]


def test_the_best_by_a_metric_is_kept_too() -> None:
    run = running(Retention(latest=1, best=BestCheckpoint(metric="loss", mode="min")))
    for step, loss in ((10, 3.0), (20, 1.0), (30, 2.0), (40, 2.5)):
        commit(run, step, metrics={"loss": loss})
    assert steps(run) == [20, 40]


def test_the_first_of_each_so_many_steps_is_kept_for_good() -> None:
    run = running(Retention(latest=1, every=100))
    for step in (40, 90, 130, 180, 250, 260, 270, 410, 420):
        commit(run, step)
    assert steps(run) == [130, 250, 410, 420]
    run.feed(released(reason=ReleaseReason.SUCCEEDED))
    assert steps(run) == [130, 250, 410, 420]


def test_an_attempt_that_went_back_replaces_what_it_does_anew() -> None:
    keep = Retention(latest=1, every=100)
    run = running(keep)
    for step in (90, 110, 210, 220):
        commit(run, step)
    run.feed(restored(1, 110))
    run.feed(released())
    run.feed(allocated(2, keep=keep, resume=ref(1, 110)))
    for step in (190, 205, 215):
        commit(run, step, attempt=2)
    kept = [tuple(item.id) for item in run.state.jobs[JOB].kept]
    assert kept == [(1, 110), (2, 205), (2, 215)]


def test_what_an_attempt_started_from_is_kept_until_it_has_its_own() -> None:
    run = running(Retention(latest=1))
    commit(run, 10)
    commit(run, 20)
    run.feed(released())
    run.feed(allocated(2, keep=Retention(latest=1), resume=ref(1, 20)))
    assert steps(run) == [20]
    commit(run, 30, attempt=2)
    assert steps(run) == [30]


def test_what_the_scheduler_may_start_from_is_kept_however_far_behind_it_is() -> None:
    run = running(Retention(latest=1))
    commit(run, 10)
    for step in (20, 30, 40):
        commit(run, step, heard=False)
    assert steps(run) == [10, 20, 30, 40]
    run.feed(resumes(1, 20))
    assert steps(run) == [20, 30, 40]
    assert run.feed(resumes(1, 20)) == []
    run.feed(allocated(2, keep=Retention(latest=1), resume=ref(1, 20)))
    commit(run, 25, attempt=2, heard=False)
    assert steps(run) == [20, 30, 40, 25]
    run.feed(resumes(2, 25))
    assert steps(run) == [25]


def test_the_end_of_a_job_deletes_nothing_that_another_may_begin_from() -> None:
    run = running(Retention(latest=1))
    commit(run, 10)
    commit(run, 20, heard=False)
    run.feed(released(reason=ReleaseReason.SUCCEEDED))
    assert steps(run) == [10, 20]
    run.feed(resumes(1, 20))
    assert steps(run) == [20]


def test_what_the_scheduler_falls_back_to_is_kept_with_all_that_is_newer() -> None:
    run = running(Retention(latest=2))
    for step in (10, 20):
        commit(run, step)
    run.feed(resumes(1, 10))
    commit(run, 30, heard=False)
    commit(run, 40, heard=False)
    assert steps(run) == [10, 20, 30, 40]
    run.feed(resumes(1, 40))
    assert steps(run) == [30, 40]


def test_a_point_that_is_gone_or_of_another_job_changes_nothing() -> None:
    run = running(Retention(latest=1))
    for step in (10, 20):
        commit(run, step)
    assert run.feed(resumes(1, 10)) == []
    assert run.feed(ResumePointChanged(job_id=JOB, checkpoint=None)) == []
    run.feed(allocated(job_id="job-2"))
    assert run.feed(ResumePointChanged(job_id="job-2", checkpoint=ref(1, 20))) == []
    assert run.feed(resumes(1, 20, job_id="nobody")) == []


def test_a_log_that_deletes_what_the_scheduler_may_start_from_is_told() -> None:
    log = [
        ResumeNoted(job_id=JOB, checkpoint=ref(1, 10)),
        CheckpointDeleted(job_id=JOB, attempt=1, step=9, reason=""),
        CheckpointDeleted(job_id=JOB, attempt=1, step=10, reason=""),
    ]
    told = "('job-1', 1, 10) was deleted, and the scheduler knows only StepId(attempt=1, step=10)"
    assert log_violations(log) == [told]
    damaged = CheckpointCorrupted(job_id=JOB, attempt=1, step=10, key="k", reason="flipped")
    assert log_violations([damaged, *log]) == []


def test_another_job_holds_the_checkpoint_that_it_started_from() -> None:
    run = running(Retention(latest=1))
    commit(run, 10)
    run.feed(allocated(job_id="job-2", resume=ref(1, 10)))
    commit(run, 20)
    assert steps(run) == [10, 20]
    commit(run, 5, job_id="job-2")
    assert steps(run) == [20]


def held_by_another_job() -> DeciderRun[CheckpointState, Reports]:
    """Steps 10 to 30, of which 30 alone is kept, and 10 as long as job-2 is to start from it."""
    run = running(Retention(latest=1))
    commit(run, 10)
    run.feed(allocated(job_id="job-2", resume=ref(1, 10)))
    commit(run, 20)
    commit(run, 30)
    assert steps(run) == [10, 30]
    return run


def test_a_hold_ends_with_its_job() -> None:
    run = held_by_another_job()
    run.feed(released(reason=ReleaseReason.FAILED, job_id="job-2"))
    assert steps(run) == [30]


def test_an_attempt_that_saved_nothing_leaves_its_start_to_the_next() -> None:
    run = held_by_another_job()
    run.feed(released(job_id="job-2"))
    assert steps(run) == [10, 30]
    run.feed(allocated(2, job_id="job-2", resume=ref(1, 10)))
    assert steps(run) == [10, 30]
    commit(run, 5, attempt=2, job_id="job-2")
    assert steps(run) == [30]


def test_a_hold_ends_with_a_job_that_waits_for_its_next_attempt() -> None:
    run = held_by_another_job()
    run.feed(released(job_id="job-2"))
    run.feed(ended("job-2"))
    assert steps(run) == [30]


def test_a_hold_ends_when_the_next_attempt_starts_elsewhere() -> None:
    run = held_by_another_job()
    run.feed(released(job_id="job-2"))
    run.feed(allocated(2, job_id="job-2", resume=ref(1, 30)))
    assert steps(run) == [30]
    commit(run, 40)
    assert steps(run) == [30, 40]


def test_what_a_user_restores_is_kept_though_the_stopping_gang_saves() -> None:
    run = running(Retention(latest=2))
    for step in (10, 20):
        commit(run, step)
    assert run.feed(restored(1, 10)) == [RestoreNoted(job_id=JOB, checkpoint=ref(1, 10))]
    assert run.feed(restored(1, 10)) == []
    commit(run, 30)
    assert steps(run) == [10, 20, 30]
    run.feed(released())
    run.feed(allocated(2, keep=Retention(latest=2), resume=ref(1, 10)))
    commit(run, 15, attempt=2)
    assert steps(run) == [30, 15]


def test_only_the_last_restore_counts_and_none_after_the_end() -> None:
    run = running(Retention(latest=2))
    for step in (10, 20):
        commit(run, step)
    run.feed(restored(1, 10))
    run.feed(restored(1, 20))
    commit(run, 30)
    commit(run, 40)
    assert steps(run) == [20, 30, 40]
    run.feed(released(reason=ReleaseReason.CANCELLED))
    assert steps(run) == [30, 40]
    assert run.feed(restored(1, 30)) == []


def test_a_restore_to_what_is_gone_or_to_another_jobs_keeps_nothing() -> None:
    run = running(Retention(latest=1))
    commit(run, 10)
    commit(run, 20)
    assert run.feed(restored(1, 10)) == []
    run.feed(allocated(job_id="job-2"))
    foreign = ResumePointChanged(job_id="job-2", checkpoint=ref(1, 20), restored=True)
    assert run.feed(foreign) == []


def test_an_ended_job_keeps_its_checkpoints_and_costs_nothing_more() -> None:
    run = running(Retention(latest=2))
    for step in (10, 20):
        commit(run, step)
    run.feed(released(reason=ReleaseReason.SUCCEEDED))
    run.now = run.now.replace(hour=run.now.hour + 1)
    run.feed(allocated(job_id="job-2"))
    assert steps(run) == [10, 20]
    assert JOB not in run.state.active


def test_an_unhealthy_checkpoint_never_stands_in_for_a_healthy_one() -> None:
    kept = [
        Kept(StepId(1, 10), 2, {}),
        Kept(StepId(1, 20), 2, {}, healthy=False),
        Kept(StepId(1, 30), 2, {}, healthy=False),
    ]
    assert surplus(kept, Retention(latest=1), (), known=StepId(1, 30)) == []
    kept.append(Kept(StepId(1, 40), 2, {}))
    assert surplus(kept, Retention(latest=1), (), known=StepId(1, 40)) == [
        StepId(1, 10),
        StepId(1, 20),
        StepId(1, 30),
    ]


@given(
    st.lists(
        st.tuples(st.integers(0, 50), st.booleans(), st.floats(0, 9)), unique_by=lambda x: x[0]
    ),
    st.integers(1, 4),
    st.sampled_from(["min", "max", None]),
    st.sampled_from([None, 1, 7, 20]),
    st.sets(st.integers(0, 50)),
    st.none() | st.integers(0, 51),
)
@settings(deadline=None)
def test_what_a_rule_keeps_is_never_surplus_and_the_rest_of_the_old_is(
    items: list[tuple[int, bool, float]],
    latest: int,
    mode: str | None,
    every: int | None,
    held_steps: set[int],
    known_step: int | None,
) -> None:
    best = None if mode is None else BestCheckpoint(metric="loss", mode=mode)
    kept = [
        Kept(StepId(1, step), 2, {"loss": loss}, healthy=healthy)
        for step, healthy, loss in sorted(items)
    ]
    held = {StepId(1, step) for step in held_steps}
    keep = Retention(latest=latest, best=best, every=every)
    known = None if known_step is None else StepId(1, known_step)
    gone = set(surplus(kept, keep, held, known=known))
    healthy = [item.id for item in kept if item.healthy]
    unheard = {step_id for step_id in healthy if known is None or step_id >= known}
    assert not gone & unheard
    assert not gone & set(healthy[-latest:])
    assert not gone & held
    if healthy and best is not None:
        values = {item.id: item.metrics["loss"] for item in kept if item.healthy}
        chosen = (min if mode == "min" else max)(values.values())
        assert any(values[step_id] == chosen for step_id in values if step_id not in gone)
    numbers = [step_id.step // every for step_id in healthy] if every is not None else []
    firsts = {
        step_id
        for at, step_id in enumerate(healthy)
        if numbers and numbers[at] and numbers[at] not in numbers[:at]
    }
    assert not gone & firsts
    if healthy:
        assert healthy[-1] not in gone
        best_one = 0 if best is None else 1
        assert len([item for item in healthy if item not in gone]) <= (
            latest + best_one + len(firsts) + len(held) + len(unheard)
        )


def test_a_deleted_checkpoint_is_named_with_its_reason() -> None:
    run = running(Retention(latest=1))
    commit(run, 10)
    commit(run, 20)
    [event] = run.events(CheckpointDeleted)
    assert isinstance(event, CheckpointDeleted)
    assert (event.step, event.reason) == (10, "newer checkpoints replace it")
