"""Hangs: a gang of which no rank advances is restarted, and no other gang is."""

from __future__ import annotations

import pytest

from gangline_faults.core.model import Liveness
from gangline_faults.core.state import FaultState
from gangline_schemas.base import Event
from gangline_schemas.events.faults import FailureCause, GangFailed, IncidentClosed
from gangline_schemas.events.heartbeats import GangStatus, RankActivity, RankStatus, WorkerHeartbeat
from gangline_schemas.failure_policy import RestartCause, RestartPolicy
from support.builders.faults import allocated, beat, running
from support.harnesses.decider_run import DeciderRun

TRAINING, EVALUATING = RankActivity.TRAINING, RankActivity.EVALUATING


def rank(
    quiet_s: float | None,
    p99_s: float | None = 0.5,
    activity: RankActivity | None = TRAINING,
    step: int | None = 20,
) -> RankStatus:
    return RankStatus(
        rank=0, pid=1, step=step, activity=activity, quiet_s=quiet_s, step_p99_s=p99_s
    )


def says(node_id: str, status: RankStatus, attempt: int = 1) -> WorkerHeartbeat:
    """A heartbeat with the one rank of the gang that is on this node."""
    numbered = status.model_copy(update={"rank": 0 if node_id == "n1" else 1})
    told = GangStatus(job_id="job-1", attempt=attempt, ranks=(numbered,))
    return beat(node_id).model_copy(update={"gangs": (told,)})


def after(run: DeciderRun[FaultState, Liveness], n1: RankStatus, n2: RankStatus) -> list[Event]:
    run.signal(says("n1", n1))
    run.signal(says("n2", n2))
    return run.tick(1)


def test_a_gang_that_trains_and_gets_nowhere_is_started_again() -> None:
    run = running()
    assert after(run, rank(4.9), rank(4.9)) == []
    (failed,) = after(run, rank(5.9), rank(6.1))
    assert isinstance(failed, GangFailed)
    assert (failed.cause, failed.action, failed.node_id) == (FailureCause.HANG, "restart", "n2")
    assert failed.avoid_nodes == ()
    assert failed.message == (
        "no rank made progress: rank 1 on n2 was quiet for 6 s after step 20; its steps take up to "
        "0.50 s, and the limit is 5 s"
    )
    assert after(run, rank(7.0), rank(7.0)) == []


def test_slow_steps_are_waited_for_four_times_as_long() -> None:
    run = running()
    assert after(run, rank(39.0, p99_s=10.0), rank(39.0, p99_s=10.0)) == []
    assert after(run, rank(41.0, p99_s=10.0), rank(41.0, p99_s=10.0)) != []


@pytest.mark.parametrize(
    "other",
    [
        rank(0.2),
        rank(300.0, activity=EVALUATING),
        rank(300.0, activity=RankActivity.CHECKPOINTING),
        rank(300.0, activity=RankActivity.WAITING),
        rank(300.0, p99_s=None),
        rank(300.0, activity=None),
    ],
    ids=["steps", "evaluates", "saves", "waits for data", "has few steps", "says nothing"],
)
def test_while_one_rank_has_a_reason_nobody_hangs(other: RankStatus) -> None:
    assert after(running(), rank(300.0), other) == []


@pytest.mark.parametrize(
    "silent", [rank(None, p99_s=None, activity=None), rank(900.0, p99_s=None, activity=None)]
)
def test_of_ranks_that_never_say_what_they_do_the_others_steps_decide(silent: RankStatus) -> None:
    """Often rank 0 alone reports."""
    assert after(running(), rank(6.0), silent) != []
    assert after(running(), silent, silent) == []


SILENT = rank(900.0, p99_s=None, step=None)


def test_where_rank_0_alone_reports_steps_its_steps_decide() -> None:
    """The others say that they train, as all programs of the guide do, and nothing more."""
    run = running()
    assert after(run, rank(4.9), SILENT) == []
    (failed,) = after(run, rank(5.1), SILENT)
    assert isinstance(failed, GangFailed)
    assert "rank 0 on n1 was quiet for 5 s" in failed.message


def test_before_rank_0_has_steps_the_others_have_time() -> None:
    few = rank(301.0, p99_s=None)
    assert after(running(), few, rank(301.0, p99_s=None, step=None)) == []
    assert after(running(), rank(601.0, p99_s=None), rank(601.0, p99_s=None, step=None)) != []


def test_a_silent_rank_that_evaluates_has_a_reason() -> None:
    other = rank(300.0, p99_s=None, activity=EVALUATING, step=None)
    assert after(running(), rank(300.0), other) == []


def test_who_does_something_else_hangs_later() -> None:
    run = running()
    assert after(run, rank(599.0, activity=EVALUATING), rank(599.0, activity=None)) == []
    (failed,) = after(run, rank(601.0, activity=EVALUATING), rank(600.0, activity=None))
    assert isinstance(failed, GangFailed)
    assert failed.message.endswith("after step 20 while evaluating; the limit is 600 s")


def test_before_its_first_step_a_gang_has_time() -> None:
    starting = rank(601.0, p99_s=None, activity=RankActivity.STARTING, step=None)
    (failed,) = after(running(), starting, starting)
    assert isinstance(failed, GangFailed)
    assert "before its first step while starting" in failed.message


def test_only_what_every_node_has_just_said_counts() -> None:
    run = running()
    run.signal(says("n1", rank(9.0)))
    assert run.tick(1) == []
    run.signal(says("n2", rank(9.0)))
    assert run.tick(3) == []


@pytest.mark.parametrize("named", [True, False], ids=["seen to run", "after a takeover"])
def test_ranks_that_hang_after_all_of_another_node_ended_are_found(named: bool) -> None:
    """A rank that ended well is in no heartbeat any more: its node is there, without the gang."""
    run = running()
    if named:
        run.signal(says("n1", rank(0.1)))
    for quiet_s in (1.0, 4.0):
        run.signal(beat("n1"))
        run.signal(says("n2", rank(quiet_s)))
        assert run.tick(3) == []
    run.signal(beat("n1"))
    run.signal(says("n2", rank(5.1)))
    (failed,) = run.tick(1)
    assert isinstance(failed, GangFailed)
    assert (failed.cause, failed.node_id) == (FailureCause.HANG, "n2")


def test_who_waits_for_a_node_that_still_prepares_does_not_hang() -> None:
    run = running()
    run.signal(beat("n1"))
    run.signal(says("n2", rank(700.0, p99_s=None, activity=RankActivity.STARTING, step=None)))
    assert run.tick(1) == []


def test_an_older_attempt_and_a_stranger_say_nothing() -> None:
    run = running()
    run.feed(allocated(attempt=2))
    run.signal(says("n1", rank(9.0)))
    run.signal(says("n2", rank(9.0)))
    assert run.tick(1) == []


def test_a_takeover_begins_to_listen_anew() -> None:
    run = running()
    run.signal(says("n1", rank(9.0)))
    run.signal(says("n2", rank(9.0)))
    run.take_over()
    assert run.tick(1) == []
    assert after(run, rank(9.0), rank(9.0)) != []


def test_a_job_that_does_not_want_it_fails_and_says_so() -> None:
    policy = RestartPolicy(on=(RestartCause.NODE,))
    failed, closed = after(running(policy), rank(9.0), rank(9.0))
    assert isinstance(failed, GangFailed)
    assert isinstance(closed, IncidentClosed)
    assert failed.action == "fail"
    assert failed.message.startswith(
        "not restarted: restart.on does not name hang; no rank made progress"
    )
