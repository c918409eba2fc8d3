"""The gateway's live jobs: state, progress, checkpoints and ends, from any order of topics."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from itertools import permutations

import pytest

from gangline_gateway import gang_heartbeats, present
from gangline_gateway.gang_price import price_of_gang
from gangline_gateway.live import METRICS_OF_A_RUN
from gangline_schemas.base import Event
from gangline_schemas.events.checkpoints import CheckpointDeleted
from gangline_schemas.events.faults import FailureCause, JobFlagged
from gangline_schemas.events.requests import JobSubmitted
from gangline_schemas.events.scheduling import JobWaiting
from gangline_schemas.gpu_prices import GpuPrices
from support.builders.gangs import gang_failed
from support.builders.live_job import (
    ADMITTED,
    JOINED,
    PENDING,
    RELEASED,
    RUNNING,
    SPEC,
    SUCCEEDED,
    allocated,
    at_step,
    committed,
    details,
    moved,
    queued,
)
from support.builders.read_model import NOW, fold


def test_a_job_has_the_same_state_in_whatever_order_its_topics_are_read() -> None:
    requests = [JobSubmitted(job_id="a", spec=SPEC, user="ada")]
    quota = [ADMITTED]
    scheduling = [JOINED, queued(), moved(PENDING), allocated(), moved(RUNNING)]
    others: list[Event] = [at_step(5), committed(5)]
    for order in permutations([requests, quota, scheduling, others]):
        model = fold([event for topic in order for event in topic])
        found = details(model)
        assert (found.job.state, found.job.admitted) == ("running", True)
        assert found.gang is not None
        assert (found.job.attempt, found.gang.attempt, found.gang.world_size) == (1, 1, 2)
        assert found.progress is not None
        assert found.progress.step == 5
        assert [row.step for row in found.checkpoints] == [5]
        assert model.view().used_gpus == {"nlp": 2}


def test_a_pending_job_says_why_it_waits_until_it_starts() -> None:
    reason = JobWaiting(job_id="a", code="capacity", message="needs 2 GPUs; 1 is free")
    model = fold([JOINED, queued(), moved(PENDING), reason])
    waiting = details(model).waiting
    assert waiting is not None
    assert (waiting.code, waiting.message) == ("capacity", "needs 2 GPUs; 1 is free")
    answer = present.explain(model.view(), details(model), None, NOW)
    assert (answer.code, answer.message) == ("capacity", "needs 2 GPUs; 1 is free")
    fold([allocated()], model)
    assert details(model).waiting is None


def test_an_ended_job_says_when_and_how_it_ended() -> None:
    model = fold([JOINED, queued(), allocated(), moved(RUNNING), moved(SUCCEEDED, RUNNING)])
    answer = present.explain(model.view(), details(model), None, NOW)
    assert (answer.code, answer.message) == ("succeeded", "every rank ended with exit code 0")
    assert answer.since == details(model).job.ended_at is not None


def test_a_restart_is_counted_and_its_first_failed_rank_is_shown() -> None:
    failed = gang_failed("a", 1, NOW, FailureCause.PROCESS, first_rank=1, node_id="n0", signal=9)
    model = fold([JOINED, queued(), allocated(), failed, RELEASED, moved(PENDING), allocated(2)])
    answer = present.summary(details(model), NOW)
    assert (answer.attempt, answer.restarts, answer.gpu_seconds) == (2, 1, 12.5)
    assert answer.failure is not None
    assert (answer.failure.first_rank, answer.failure.signal) == (1, 9)


def test_a_gang_s_gpus_count_while_it_has_them_and_have_a_price() -> None:
    model = fold([JOINED, queued(), allocated(), moved(RUNNING)])
    gang = details(model).gang
    assert gang is not None
    later, silent = gang.allocated_at + timedelta(minutes=30), gang_heartbeats.GangHeartbeats()
    answer = present.job(details(model), later, silent)
    assert (answer.gpu_seconds, answer.running_gpu_seconds) == (0.0, 2 * 1800.0)
    assert price_of_gang(gang, GpuPrices.of({"h100": 3.0})) == 6.0
    assert price_of_gang(gang, GpuPrices.of({"a100": 3.0})) is None
    assert price_of_gang(None, GpuPrices.of({"h100": 3.0})) is None
    fold([RELEASED], model)
    answer = present.job(details(model), later, silent)
    assert (answer.gpu_seconds, answer.running_gpu_seconds) == (12.5, 0.0)


def test_progress_gives_the_newest_values_and_the_remaining_time() -> None:
    model = fold([JOINED, queued(), allocated(), moved(RUNNING), at_step(10), at_step(20)])
    answer = present.summary(details(model), NOW + timedelta(seconds=63))
    assert (answer.step, answer.loss, answer.mfu) == (20, 20.0, 19.0)
    assert answer.total_steps == 100
    assert (answer.gpus, answer.gpus_allocated) == (2, 2)
    assert answer.estimated_remaining_s == pytest.approx(80 * 0.1)
    assert answer.elapsed_s == pytest.approx(60)


def test_an_elastic_gang_is_shown_with_what_it_has() -> None:
    one = allocated().nodes[0].model_copy(update={"gpus": (0,)})
    less = allocated().model_copy(update={"world_size": 1, "nodes": (one,)})
    answer = present.summary(details(fold([JOINED, queued(), less])), NOW)
    assert (answer.gpus, answer.gpus_allocated) == (2, 1)
    waiting = present.summary(details(fold([queued()])), NOW)
    assert (waiting.gpus, waiting.gpus_allocated) == (2, 0)


def test_progress_never_falls_back() -> None:
    events = [at_step(30, attempt=2), at_step(50), at_step(29, attempt=2), at_step(30, attempt=2)]
    progress = details(fold([queued(), *events])).progress
    assert progress is not None
    assert (progress.attempt, progress.step) == (2, 30)
    assert progress.at == NOW + timedelta(seconds=4), "the same step, said again, has a new age"


def test_a_run_without_steps_is_stalled_only_while_its_attempt_runs() -> None:
    since = NOW - timedelta(minutes=3)
    stalled = at_step(7, tokens_per_s=9.0, data_wait_share=0.25, stalled_since=since)
    model = fold([JOINED, queued(), allocated(), moved(RUNNING), at_step(7), stalled])
    answer = present.summary(details(model), NOW)
    assert (answer.stalled_since, answer.step) == (since, 7)
    assert (answer.tokens_per_s, answer.data_wait_share) == (9.0, 0.25)
    assert answer.progress_at == NOW + timedelta(seconds=5)
    again = fold([RELEASED, moved(PENDING, RUNNING), allocated(2), moved(RUNNING)], model)
    assert present.summary(details(again), NOW).stalled_since is None, "of an earlier attempt"
    ended = fold([JOINED, queued(), allocated(), stalled, moved(SUCCEEDED, RUNNING)])
    assert present.summary(details(ended), NOW).stalled_since is None


def test_of_many_metrics_the_first_are_kept() -> None:
    many = {f"m{index}": 1.0 for index in range(METRICS_OF_A_RUN + 9)}
    progress = details(fold([queued(), at_step(1, metrics=many)])).progress
    assert progress is not None
    assert list(progress.metrics) == list(many)[:METRICS_OF_A_RUN]


def test_steps_that_another_team_reports_are_not_the_jobs() -> None:
    foreign = at_step(50, attempt=2, team="vision")
    model = fold([foreign, queued(), foreign])
    assert details(model).progress is None
    progress = details(fold([at_step(1), foreign], model)).progress
    assert progress is not None
    assert (progress.attempt, progress.step) == (1, 1)


@pytest.mark.parametrize("order", list(permutations(["queued", "own", "foreign"])))
def test_another_teams_report_hides_no_progress(order: Sequence[str]) -> None:
    """Also if progress is read before the job is, as at a start."""
    events = {"queued": queued(), "own": at_step(1), "foreign": at_step(50, team="vision")}
    progress = details(fold([events[name] for name in order])).progress
    assert progress is not None
    assert progress.step == 1


@pytest.mark.parametrize("given", [10**400, -1, 0, 2**60, float("inf"), "many", None])
def test_a_job_is_listed_whatever_its_hyperparameter_steps_is(given: object) -> None:
    spec = SPEC.model_copy(update={"hyperparameters": {"steps": given}})
    model = fold([queued().model_copy(update={"spec": spec})])
    assert present.summary(details(model), NOW).total_steps is None


def test_a_new_attempt_may_begin_at_an_earlier_step() -> None:
    progress = details(fold([queued(), at_step(54), at_step(42, attempt=2)])).progress
    assert progress is not None
    assert (progress.attempt, progress.step) == (2, 42)


def test_not_finite_metrics_never_reach_an_answer() -> None:
    report = at_step(1).model_copy(update={"metrics": {"loss": float("nan"), "lr": 0.1}})
    answer = present.job(details(fold([queued(), report])), NOW, gang_heartbeats.GangHeartbeats())
    assert (answer.loss, answer.metrics) == (None, {"lr": 0.1})


def test_the_last_checkpoint_is_the_newest_healthy_one() -> None:
    gone = CheckpointDeleted(job_id="a", attempt=1, step=20, reason="retention")
    model = fold([queued(), committed(10), committed(20), committed(10), gone])
    answer = present.summary(details(model), NOW)
    assert answer.last_checkpoint is not None
    assert answer.last_checkpoint.step == 10
    statuses = {row.step: row.status for row in details(model).checkpoints}
    assert statuses == {10: "committed", 20: "deleted"}


def test_a_job_that_trains_without_damaged_data_says_so() -> None:
    flags = [
        JobFlagged(
            job_id="a",
            attempt=1,
            rank=block,
            node_id="n0",
            snapshot="corpus@xxh3-0",
            shard="shard-000002.tok",
            block=block,
            reason="holds other bytes",
            flagged_at=NOW,
        )
        for block in (3, 4)
    ]
    model = fold([*flags, queued(), moved(RUNNING), flags[0]])
    found = model.view().details("a")
    assert found is not None
    shown = present.job(found, NOW, gang_heartbeats.GangHeartbeats()).review
    assert [(flag.shard, flag.block, flag.rank) for flag in shown] == [
        ("shard-000002.tok", 3, 3),
        ("shard-000002.tok", 4, 4),
    ]
    again = model.restarted().view().details("a")
    assert again is not None
    assert again.flags == found.flags
