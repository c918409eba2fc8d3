"""Incidents: each failure becomes one record that says what it cost and when it was over."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import pytest

from gangline_faults.core.model import Liveness
from gangline_faults.core.state import FaultState
from gangline_schemas.base import Event
from gangline_schemas.events.faults import (
    FailureClass,
    GangFailed,
    GangRunning,
    IncidentClosed,
    JobProgressed,
)
from gangline_schemas.events.heartbeats import GangStatus, RankStatus, WorkerHeartbeat
from gangline_schemas.job import JobState
from support.builders.faults import allocated, beat, committed, exited, moved, released, running
from support.harnesses.decider_run import START, DeciderRun


def later(run: DeciderRun[FaultState, Liveness], seconds: float) -> None:
    run.now += timedelta(seconds=seconds)


def steps(
    node_id: str, step: int | None, attempt: int = 2, quiet_s: float = 0.5
) -> WorkerHeartbeat:
    rank = RankStatus(rank=int(node_id[1:]) - 1, pid=1, step=step, quiet_s=quiet_s)
    told = GangStatus(job_id="job-1", attempt=attempt, ranks=(rank,))
    return beat(node_id).model_copy(update={"gangs": (told,)})


def closed(events: Sequence[Event]) -> IncidentClosed:
    (found,) = [event for event in events if isinstance(event, IncidentClosed)]
    return found


def verdict(events: Sequence[Event]) -> GangFailed:
    (found,) = [event for event in events if isinstance(event, GangFailed)]
    return found


def failing(last_step: int | None = 97) -> DeciderRun[FaultState, Liveness]:
    """`job-1` trained for 100 s, with a checkpoint of step 60 after 60 s, and was killed."""
    run = running()
    later(run, 60)
    run.feed(committed(60))
    later(run, 40)
    run.feed(exited(1, signal=9, last_step=last_step))
    return run


def again(run: DeciderRun[FaultState, Liveness], attempt: int = 2, resume: int | None = 60) -> None:
    """A second later the next attempt has its GPUs, and two later it runs."""
    later(run, 1)
    run.feed(released(attempt=attempt - 1))
    run.feed(allocated(attempt=attempt, resume=resume))
    later(run, 2)
    run.feed(moved(attempt))
    assert run.tick() == []


def test_an_incident_tells_when_its_job_stepped_again_and_what_it_cost() -> None:
    run = failing()
    again(run)
    run.take_over()
    assert run.tick() == []
    later(run, 1.5)
    run.signal(steps("n1", 61))
    found = closed(run.tick(0.5))
    assert (found.attempt, found.next_attempt, found.failures) == (1, 2, 1)
    assert (found.failure_class, found.first_rank, found.node_id) == (FailureClass.PROCESS, 1, "n2")
    assert found.message == "rank 1 on n2 was ended by SIGKILL"
    assert (found.last_step, found.committed_step, found.resume_step) == (97, 60, 60)
    since = [START + timedelta(seconds=s) for s in (100, 101, 103, 104)]
    times = [found.failed_at, found.allocated_at, found.running_at, found.first_step_at]
    assert times == since
    assert (found.outcome, found.recover_s, found.down_s) == ("recovered", 4.0, 4.0)
    assert (found.work_lost_s, found.lost_gpu_s) == (40.0, 2 * 44.0)
    assert run.tick(1000) == []


def test_the_verdict_has_all_that_is_known_before_the_recovery() -> None:
    (event,) = failing().events(GangFailed)
    assert isinstance(event, GangFailed)
    assert (event.team, event.world_size, event.failures) == ("nlp", 2, 1)
    assert (event.last_step, event.committed_step, event.work_lost_s) == (97, 60, 40.0)


def test_a_step_that_was_done_before_is_no_recovery() -> None:
    run = failing()
    again(run)
    run.signal(steps("n1", 60))
    run.signal(steps("n2", 97, attempt=1))
    assert run.tick(1) == []


def test_who_told_of_steps_has_not_recovered_before_the_next_however_long_it_loads() -> None:
    run = failing()
    again(run)
    for _ in range(30):
        run.signal(steps("n1", None))
        run.signal(steps("n2", None))
        assert run.tick(25) == []
    run.signal(steps("n1", 61, quiet_s=0.0))
    found = closed(run.tick(1))
    assert (found.outcome, found.recover_s) == ("recovered", 3.0 + 30 * 25)


def test_who_never_tells_of_steps_has_recovered_when_it_ran() -> None:
    run = failing(last_step=None)
    again(run)
    run.signal(steps("n1", None))
    assert run.tick(590) == []
    found = closed(run.tick(20))
    assert (found.first_step_at, found.recover_s, found.outcome) == (None, 3.0, "recovered")


def test_a_job_that_is_not_started_again_has_lost_its_work_alone() -> None:
    run = running()
    later(run, 30)
    found = closed(run.feed(exited(0, code=1, message="ValueError: x")))
    assert (found.outcome, found.action, found.recover_s) == ("job_failed", "fail", None)
    assert (found.down_s, found.work_lost_s, found.lost_gpu_s) == (0, 30, 60)
    assert not run.state.incidents


def test_a_failure_before_the_recovery_begins_an_incident_of_its_own() -> None:
    run = failing()
    again(run)
    later(run, 5)
    events = run.feed(exited(0, attempt=2, signal=9))
    first = closed(events)
    assert (first.attempt, first.outcome, first.down_s) == (1, "failed_again", 8.0)
    assert first.recover_s is None
    assert verdict(events).work_lost_s == 0  # all of it was the first one's downtime
    again(run, attempt=3)
    later(run, 1)
    run.signal(steps("n1", 61, attempt=3, quiet_s=0))
    second = closed(run.tick())
    assert (second.attempt, second.outcome, second.recover_s) == (2, "recovered", 4.0)


def test_steps_that_only_the_exit_tells_of_are_a_recovery_too() -> None:
    run = failing()
    again(run)
    later(run, 7)
    events = run.feed(exited(0, attempt=2, signal=9, last_step=64))
    first = closed(events)
    assert (first.outcome, first.recover_s) == ("recovered", 3.0)
    assert verdict(events).work_lost_s == 7


def test_after_a_recovery_the_next_failure_costs_what_was_trained_since() -> None:
    run = failing()
    again(run)
    run.signal(steps("n1", 61, quiet_s=0))
    run.tick()
    later(run, 50)
    assert verdict(run.feed(exited(0, attempt=2, signal=9))).work_lost_s == 50


@pytest.mark.parametrize(
    ("state", "outcome", "recover_s"),
    [(JobState.SUCCEEDED, "recovered", 3.0), (JobState.CANCELLED, "job_ended", None)],
)
def test_the_end_of_the_job_ends_its_incident(
    state: JobState, outcome: str, recover_s: float | None
) -> None:
    run = failing()
    again(run)
    later(run, 7)
    found = closed(run.feed(moved(2, state)))
    assert (found.outcome, found.recover_s) == (outcome, recover_s)
    assert not run.state.incidents


def test_running_is_noted_once_and_only_after_a_failure() -> None:
    run = running()
    assert run.feed(moved(1)) == []
    run.feed(exited(0, signal=9))
    again(run)
    assert [type(event) for event in run.events(GangRunning)] == [GangRunning]
    assert run.feed(moved(2)) == []


def test_an_attempt_that_was_preempted_before_it_ran_is_part_of_the_incident() -> None:
    run = failing()
    later(run, 1)
    run.feed(released())
    run.feed(allocated(attempt=2, resume=60))
    run.feed(released(attempt=2))
    later(run, 9)
    again(run, attempt=3)
    run.signal(steps("n1", 61, attempt=3, quiet_s=0))
    found = closed(run.tick())
    assert (found.attempt, found.next_attempt, found.recover_s) == (1, 3, 13.0)


def test_a_commit_is_noted_once_and_never_backwards() -> None:
    run = running()
    assert [type(event) for event in run.feed(committed(20))] == [JobProgressed]
    assert run.feed(committed(20)) == []
    assert run.feed(committed(10)) == []
    assert run.feed(committed(30, attempt=2)) == []  # of an attempt that is not known
    assert run.feed(committed(30, job_id="job-2")) == []


def test_a_checkpoint_that_was_on_its_way_saves_work_that_the_verdict_gave_up() -> None:
    run = failing()
    again(run, resume=90)
    run.signal(steps("n1", 91))
    found = closed(run.tick(0.5))
    assert (found.committed_step, found.resume_step) == (60, 90)
    assert found.work_lost_s == pytest.approx(40.0 * 7 / 37)
