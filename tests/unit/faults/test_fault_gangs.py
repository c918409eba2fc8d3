"""Gangs: one verdict per attempt, about the rank that failed first, within the restart budget."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import pytest

from gangline_schemas.base import Event
from gangline_schemas.events.faults import (
    ExitNoted,
    FailureCause,
    GangFailed,
    GangUnwatched,
    GangWatched,
    IncidentClosed,
)
from gangline_schemas.events.workers import ExitReason, WorkerExited
from gangline_schemas.failure_policy import RestartCause, RestartPolicy
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
    running,
)


def only_failure(events: Sequence[Event]) -> GangFailed:
    """The one verdict; beside it there may be an incident that it closes."""
    [event] = [event for event in events if not isinstance(event, IncidentClosed)]
    assert isinstance(event, GangFailed)
    return event


@pytest.mark.parametrize(
    ("exit_of_rank", "cause", "action", "says"),
    [
        (exited(signal=9), FailureCause.PROCESS, "restart", "SIGKILL"),
        (exited(signal=11), FailureCause.PROCESS, "restart", "SIGSEGV"),
        (exited(signal=7), FailureCause.PROCESS, "restart", "SIGBUS"),
        (exited(signal=6), FailureCause.PROCESS, "restart", "SIGABRT"),
        (exited(code=137), FailureCause.PROCESS, "restart", "SIGKILL"),
        (exited(signal=9, out_of_memory=True), FailureCause.OUT_OF_MEMORY, "fail", "memory"),
        (
            exited(code=1, message="torch.OutOfMemoryError: CUDA out of memory."),
            FailureCause.OUT_OF_MEMORY,
            "fail",
            "memory",
        ),
        (exited(code=1, message="ValueError: x"), FailureCause.USER_ERROR, "fail", "ValueError: x"),
        (exited(code=2), FailureCause.USER_ERROR, "fail", "code 2"),
        (exited(code=255), FailureCause.USER_ERROR, "fail", "code 255"),
        (
            exited(code=1, message="RuntimeError: uncorrectable ECC error encountered"),
            FailureCause.INFRASTRUCTURE,
            "restart",
            "hardware",
        ),
        (exited(reason=ExitReason.LEASE_LOST), FailureCause.NODE, "restart", "lease"),
        (
            exited(reason=ExitReason.LAUNCH_FAILED, code=78, message="no secret HF_TOKEN"),
            FailureCause.USER_ERROR,
            "fail",
            "HF_TOKEN",
        ),
        (
            exited(reason=ExitReason.LAUNCH_FAILED, code=1),
            FailureCause.INFRASTRUCTURE,
            "restart",
            "launch",
        ),
        (exited(), FailureCause.INFRASTRUCTURE, "restart", "status"),
    ],
)
def test_each_way_to_end_has_its_cause(
    exit_of_rank: WorkerExited, cause: FailureCause, action: str, says: str
) -> None:
    failed = only_failure(running().feed(exit_of_rank))
    assert (failed.cause, failed.action, failed.first_rank) == (cause, action, 0)
    assert says in failed.message


@pytest.mark.parametrize("reason", [ExitReason.FINISHED, ExitReason.STOPPED, ExitReason.FENCED])
def test_an_orderly_end_is_no_failure(reason: ExitReason) -> None:
    assert running().feed(exited(reason=reason, code=0)) == []


def test_the_verdict_names_the_rank_that_failed_not_the_one_it_took_along() -> None:
    run = running()
    assert run.feed(exited(1, code=1, message=PEER_LOST)) == [
        ExitNoted(exited=exited(1, code=1, message=PEER_LOST), noted_at=run.now)
    ]
    assert run.tick(1) == []
    failed = only_failure(run.feed(exited(0, signal=9)))
    assert (failed.first_rank, failed.cause) == (0, FailureCause.PROCESS)
    assert run.tick(60) == []


def test_an_abort_after_a_peers_death_waits_too() -> None:
    run = running()
    run.feed(exited(1, signal=6, message=f"terminate called: {PEER_LOST}"))
    assert only_failure(run.feed(exited(0, code=1, message="KeyError: 'x'"))).first_rank == 0


def test_without_a_better_explanation_it_is_infrastructure_after_the_settle_time() -> None:
    run = running()
    run.feed(exited(1, code=1, message=PEER_LOST))
    run.feed(exited(0, code=1, message=PEER_LOST))
    run.signal(beat("n1"))
    run.signal(beat("n2"))
    failed = only_failure(run.tick(2))
    assert (failed.cause, failed.action) == (FailureCause.INFRASTRUCTURE, "restart")
    assert failed.first_rank == 1
    assert run.tick(2) == []


def test_a_node_that_went_silent_with_its_rank_is_avoided() -> None:
    run = running()
    run.signal(beat("n1"))
    run.signal(beat("n2"))
    run.tick(3)
    run.feed(exited(1, code=1, message=PEER_LOST))
    run.now = run.now.replace(second=run.now.second + 2)
    run.signal(beat("n2"))
    failed = only_failure(run.tick())
    assert (failed.cause, failed.avoid_nodes) == (FailureCause.NODE, ("n1",))


def test_a_takeover_keeps_what_waits_for_its_verdict() -> None:
    run = running()
    run.feed(exited(1, code=1, message=PEER_LOST))
    run.take_over()
    assert run.tick() == []
    assert only_failure(run.tick(3)).first_rank == 1


def test_an_attempt_fails_once() -> None:
    run = running()
    run.feed(exited(0, signal=9))
    assert run.feed(exited(0, signal=9)) == []
    assert run.feed(exited(1, code=1)) == []
    assert not any(isinstance(event, GangFailed) for event in run.feed(joined("n1", "b")))


def test_an_exit_that_arrives_before_the_allocation_is_not_lost() -> None:
    run = fault_run()
    early = exited(1, reason=ExitReason.LAUNCH_FAILED, code=78)
    assert [type(event) for event in run.feed(early)] == [ExitNoted]
    assert run.feed(early) == []
    run.take_over()
    watched, *rest = run.feed(allocated())
    assert isinstance(watched, GangWatched)
    assert only_failure(rest).first_rank == 1


def test_an_exit_of_an_attempt_that_nobody_knows_is_forgotten() -> None:
    run = fault_run()
    run.feed(exited(code=1))
    assert run.tick(599) == []
    assert run.tick(1) == [GangUnwatched(job_id="job-1", attempt=1)]
    assert run.state.early == {}


def test_exits_of_an_older_attempt_mean_nothing() -> None:
    run = running()
    run.feed(exited(0, signal=9))
    run.feed(released())
    run.feed(allocated(attempt=2))
    assert run.feed(exited(1, code=1)) == []
    assert run.feed(allocated(attempt=1)) == []
    assert only_failure(run.feed(exited(1, attempt=2, signal=9))).attempt == 2


def test_the_restart_budget_ends_and_says_so() -> None:
    run = running()
    for attempt in (1, 2, 3):
        failed = only_failure(run.feed(exited(0, attempt=attempt, signal=9)))
        assert (failed.action, failed.restarts_used) == ("restart", attempt)
        run.feed(released(attempt=attempt))
        run.take_over()
        run.feed(allocated(attempt=attempt + 1))
    last = only_failure(run.feed(exited(0, attempt=4, signal=9)))
    assert (last.action, last.restarts_used, last.restarts_max) == ("fail", 3, 3)
    assert last.message.startswith("failed 4 times; restart.max is 3; last: rank 0 on n1")


def test_only_the_classes_that_the_job_names_are_restarted() -> None:
    run = running(RestartPolicy(on=(RestartCause.NODE,)))
    failed = only_failure(run.feed(exited(0, signal=9)))
    assert failed.action == "fail"
    assert "restart.on does not name infrastructure" in failed.message


def test_nothing_is_kept_of_a_job_that_ended() -> None:
    run = running()
    run.feed(exited(0, signal=9))
    run.feed(released())
    closed, unwatched = run.feed(ended())
    assert isinstance(closed, IncidentClosed)
    assert unwatched == GangUnwatched(job_id="job-1", attempt=1, final=True)
    assert not run.state.gangs
    assert not run.state.attempts
    assert not run.state.histories
    assert not run.state.incidents
    # late duplicates bring nothing back
    assert run.feed(ended()) == []
    assert run.feed(allocated()) == []
    assert run.feed(exited(1, code=1)) == []
    assert run.feed(released()) == []


def test_ended_jobs_are_forgotten_by_the_rule_and_not_sooner() -> None:
    run = fault_run()
    run.feed(joined("n1"))
    run.feed(joined("n2"))
    for number in range(1100):
        run.feed(allocated(job_id=f"job-{number}"))
        run.feed(ended(f"job-{number}"))
    assert run.feed(allocated(job_id="job-0")) == [], "a late duplicate"
    run.now += REMEMBERED + timedelta(seconds=1)
    run.feed(allocated(job_id="last"))
    run.feed(ended("last"))
    assert list(run.state.ended) == ["last"]


def test_an_exit_that_was_noted_by_a_clock_ahead_is_still_judged() -> None:
    run = fault_run()
    run.feed(joined("n1"))
    run.feed(joined("n2"))
    run.feed(allocated())
    run.now += timedelta(hours=1)
    run.feed(exited(1, code=1, message=PEER_LOST))
    run.now -= timedelta(hours=1)
    assert [type(event) for event in run.tick()] == [GangFailed]


def test_an_exit_of_an_attempt_that_never_came_leaves_the_live_one_watched():
    run = running()
    run.feed(exited(signal=9, attempt=7))
    assert [type(event) for event in run.tick(700.0)][-1:] == [GangUnwatched]
    assert run.state.gangs["job-1"].attempt == 1
    assert only_failure(run.feed(exited(signal=9))).attempt == 1
