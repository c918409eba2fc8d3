"""The restart budget: it refills with progress, and a breaker ends what gets nowhere."""

from __future__ import annotations

from datetime import timedelta

import pytest

from gangline_faults.core.decide import FaultDecider
from gangline_faults.core.model import Liveness
from gangline_faults.core.policy.limits import FaultLimits
from gangline_faults.core.snapshot import fingerprint
from gangline_faults.core.state import FaultState
from gangline_faults.service.config import FaultSettings
from gangline_schemas.events.faults import GangFailed, JobProgressed
from gangline_schemas.events.workers import SampleRange
from gangline_schemas.failure_policy import RestartPolicy
from support.builders.faults import (
    allocated,
    committed,
    exited,
    fault_run,
    joined,
    moved,
    released,
    running,
)
from support.harnesses.decider_run import DeciderRun

MANY = RestartPolicy(max=100)


def limited(limits: FaultLimits, restart: RestartPolicy) -> DeciderRun[FaultState, Liveness]:
    run = DeciderRun(FaultDecider(limits=limits), fingerprint)
    for node_id in ("n1", "n2"):
        run.feed(joined(node_id))
    run.feed(allocated(restart=restart))
    return run


def kill(
    run: DeciderRun[FaultState, Liveness],
    attempt: int,
    last_step: int | None = None,
    message: str = "",
) -> GangFailed:
    """Rank 0 of the attempt dies, and the next attempt is allocated."""
    died = exited(
        attempt=attempt,
        code=66 if message else None,
        signal=None if message else 9,
        last_step=last_step,
        message=message,
    )
    (failed,) = [event for event in run.feed(died) if isinstance(event, GangFailed)]
    if failed.action == "restart":
        run.feed(released(attempt=attempt))
        run.feed(allocated(attempt=attempt + 1, restart=MANY))
    return failed


def test_a_restart_comes_back_after_so_many_commits() -> None:
    run = limited(FaultLimits(refill_commits=3), MANY)
    assert kill(run, 1).restarts_used == 1
    assert kill(run, 2).restarts_used == 2
    used = []
    for step in range(10, 80, 10):
        (event,) = run.feed(committed(step, attempt=3))
        assert isinstance(event, JobProgressed)
        used.append(event.restarts_used)
    assert used == [2, 2, 1, 1, 1, 0, 0]
    run.take_over()
    assert kill(run, 3).restarts_used == 1


def test_commits_before_the_first_failure_save_nothing_up() -> None:
    run = limited(FaultLimits(refill_commits=3), MANY)
    for step in (10, 20, 30, 40):
        run.feed(committed(step))
    kill(run, 1, last_step=45)
    (event,) = run.feed(committed(50, attempt=2))
    assert isinstance(event, JobProgressed)
    assert event.restarts_used == 1


def test_without_refill_nothing_comes_back() -> None:
    run = limited(FaultLimits(refill_commits=0), MANY)
    kill(run, 1)
    for step in range(10, 200, 10):
        run.feed(committed(step, attempt=2))
    assert kill(run, 2).restarts_used == 2


def test_the_breaker_ends_a_job_that_gets_no_further_whatever_its_budget() -> None:
    run = limited(FaultLimits(idle_max=3), MANY)
    assert kill(run, 1, last_step=25).restarts_idle == 0
    for attempt in (2, 3):
        failed = kill(run, attempt, last_step=24)
        assert (failed.action, failed.restarts_idle) == ("restart", attempt - 1)
    run.take_over()
    failed = kill(run, 4, last_step=25)
    assert (failed.action, failed.restarts_used, failed.restarts_max) == ("fail", 3, 100)
    assert failed.message == (
        "failed 4 times; the last 3 restarts did not get beyond step 25; "
        "last: rank 0 on n1 was ended by SIGKILL"
    )


def test_a_step_or_a_checkpoint_beyond_the_last_begins_the_count_anew() -> None:
    run = limited(FaultLimits(idle_max=2), MANY)
    kill(run, 1, last_step=25)
    assert kill(run, 2, last_step=25).restarts_idle == 1
    assert kill(run, 3, last_step=26).restarts_idle == 0
    assert kill(run, 4).restarts_idle == 1
    run.feed(committed(30, attempt=5))
    assert kill(run, 5).restarts_idle == 0


def test_a_checkpoint_of_old_steps_is_no_progress() -> None:
    run = limited(FaultLimits(idle_max=2), MANY)
    run.feed(committed(20, attempt=1))
    kill(run, 1, last_step=25)
    run.feed(committed(20, attempt=2))
    assert kill(run, 2, last_step=22).restarts_idle == 1


def test_checkpoints_that_follow_each_other_are_progress_whatever_was_trained_before() -> None:
    run = limited(FaultLimits(idle_max=2), MANY)
    run.feed(committed(5, attempt=1))
    kill(run, 1, last_step=1000)  # it got far, and saved none of that
    for attempt in range(2, 8):
        run.feed(committed(5 * attempt, attempt=attempt))
        failed = kill(run, attempt, last_step=5 * attempt + 3)
        assert (failed.action, failed.restarts_idle) == ("restart", 0)


def test_of_who_tells_of_no_steps_short_attempts_count_as_idle() -> None:
    run = limited(FaultLimits(idle_max=2), MANY)
    kill(run, 1)
    run.now += timedelta(seconds=600)
    assert kill(run, 2).restarts_idle == 0
    assert kill(run, 3).restarts_idle == 1
    failed = kill(run, 4)
    assert failed.action == "fail"
    assert "did not get beyond its first step" in failed.message


def test_without_a_breaker_the_budget_alone_counts() -> None:
    run = limited(FaultLimits(idle_max=0), MANY)
    assert [kill(run, attempt).action for attempt in range(1, 12)] == ["restart"] * 11


def test_a_job_that_went_back_to_an_older_step_may_do_it_again() -> None:
    run = limited(FaultLimits(idle_max=1), MANY)
    kill(run, 1, last_step=90)
    run.feed(released(attempt=2))  # a user restored step 20
    run.feed(allocated(attempt=3, resume=20, restart=MANY))
    run.feed(moved(3))
    assert kill(run, 3, last_step=25).restarts_idle == 0


def test_bad_data_is_restarted_once_and_the_job_is_flagged() -> None:
    run = limited(FaultLimits(), MANY)
    words = "DataError: shard tokens-0003 block 17 is corrupt"
    first = kill(run, 1, last_step=10, message=words)
    assert (first.action, first.review, first.failure_class) == ("restart", True, "data")
    assert kill(run, 2, last_step=20).action == "restart"
    second = kill(run, 3, last_step=30, message=words)
    assert (second.action, second.review) == ("fail", True)
    assert second.message == (
        "bad data again after a restart: check the shard; rank 0 on n1 read data that differs "
        f"from its manifest: {words}"
    )


def test_the_settings_say_it() -> None:
    settings = FaultSettings(refill_commits=9, idle_restarts=0)
    assert settings.limits() == FaultLimits(refill_commits=9, idle_max=0)


NAN = "NotFiniteError: the loss or the gradient was not finite in step 90"


def not_finite(run: DeciderRun[FaultState, Liveness], attempt: int, last_step: int) -> GangFailed:
    """Both ranks of the attempt end for the same reason, and the next one is allocated."""
    died = exited(attempt=attempt, code=1, message=NAN, last_step=last_step)
    (failed,) = [event for event in run.feed(died) if isinstance(event, GangFailed)]
    assert run.feed(died.model_copy(update={"rank": 1, "node_id": "n2"})) == []
    if failed.action == "restart":
        run.feed(released(attempt=attempt))
        run.feed(allocated(attempt=attempt + 1, restart=MANY))
    return failed


def test_after_two_rollbacks_to_one_checkpoint_a_loss_that_is_not_finite_ends_the_job() -> None:
    run = limited(FaultLimits(), MANY)
    run.feed(committed(40))
    assert not_finite(run, 1, 90).action == "restart"
    run.take_over()
    second = not_finite(run, 2, 91)  # a little further: the breaker would let it
    assert (second.action, second.failure_class, second.review) == ("restart", "nan", False)
    third = not_finite(run, 3, 92)
    assert third.action == "fail"
    assert third.message == (
        "the same again after 2 restarts from step 40: check the data, the learning rate and the "
        f"precision; rank 0 on n1 could not train on: {NAN}"
    )


def test_the_next_attempt_goes_without_the_samples_that_the_rank_names() -> None:
    run, samples = (
        running(MANY),
        (SampleRange(first=1440, count=16), SampleRange(first=16, count=1)),
    )
    died = exited(code=1, message=NAN).model_copy(update={"left_out": samples})
    (failed,) = [event for event in run.feed(died) if isinstance(event, GangFailed)]
    assert (failed.action, failed.left_out) == ("restart", samples)
    assert failed.message.endswith(
        "in step 90; 17 samples are left out from now on: 1440 to 1455, 16"
    )


def test_samples_are_left_out_for_no_other_failure_and_not_of_a_job_that_is_over() -> None:
    samples = (SampleRange(first=1440, count=16),)
    for policy, message in ((MANY, "ConnectionError: no"), (RestartPolicy(max=0), NAN)):
        died = exited(code=1, message=message).model_copy(update={"left_out": samples})
        (failed,) = [e for e in running(policy).feed(died) if isinstance(e, GangFailed)]
        assert failed.left_out == ()
        assert "left out" not in failed.message


def test_a_newer_checkpoint_gives_it_two_more() -> None:
    run = limited(FaultLimits(), MANY)
    not_finite(run, 1, 30)
    not_finite(run, 2, 31)
    run.feed(committed(40, attempt=3))
    assert [not_finite(run, attempt, 90 + attempt).action for attempt in (3, 4, 5)] == [
        "restart",
        "restart",
        "fail",
    ]


@pytest.mark.parametrize("make", [fault_run, running])
def test_the_defaults_are_those_of_the_settings(make: object) -> None:
    assert callable(make)
    assert make().decider.limits == FaultSettings().limits()
