"""The steps of runs: order, conditions, fan-out, failures, retries, cancelling."""

from __future__ import annotations

import shlex

import pytest

from gangline_schemas.events.faults import FailureCause
from gangline_schemas.events.pipeline_requests import RunCancelRequested, RunRetryRequested
from gangline_schemas.events.pipelines import (
    PipelineRequestRefused,
    RunEnded,
    StepEnded,
    StepJobRequested,
)
from gangline_schemas.events.quota import JobRejected
from gangline_schemas.events.scheduling import GangReleased
from gangline_schemas.events.workers import StepOutputWritten
from gangline_schemas.job import JobState
from support.builders.pipelines import (
    JOB_GPU_S,
    TEAM,
    PipelineRun,
    chain,
    changed,
    failure,
    job,
    pipeline,
    released,
)


def test_each_step_begins_when_what_it_needs_has_ended_and_gets_its_inputs() -> None:
    world = PipelineRun()
    world.apply(chain())
    run = world.begin()
    order = []
    while world.jobs:
        (requested,) = world.jobs.values()
        order.append(requested.step)
        artifacts = requested.spec.artifacts
        assert artifacts is not None
        if requested.step == "train":
            made = world.step(run, "prepare").outputs["tokens"].digest
            assert artifacts.inputs == {"data": made}
        world.succeed()
    assert order == ["prepare", "train", "report"]
    assert world.run(run).state == "succeeded"
    world.take_over()


def test_a_job_and_its_outputs_may_be_known_in_either_order() -> None:
    world = PipelineRun()
    world.apply(pipeline({"a": {"out": ["x", "y"]}}))
    run = world.begin()
    (requested,) = world.jobs.values()
    first, second = world.outputs_of(requested)
    world.feed(first)
    world.end(requested.job_id, JobState.SUCCEEDED)
    assert world.states(run) == {"a": "running"}
    assert world.feed(first) == []
    world.feed(second)
    assert world.states(run) == {"a": "succeeded"}
    assert world.feed(second) == []
    assert world.feed(changed(requested.job_id, JobState.SUCCEEDED)) == []


def test_only_outputs_of_the_last_attempt_of_a_job_count_in_any_order() -> None:
    """Rank 0 of attempt 1 had written when another rank failed; the gang began again."""
    world = PipelineRun()
    world.apply(pipeline({"a": {"out": ["x", "y"]}}))
    run = world.begin()
    (requested,) = world.jobs.values()
    early = world.outputs_of(requested)
    world.salt = "again"
    late = [one.model_copy(update={"attempt": 2}) for one in world.outputs_of(requested)]
    ended = changed(requested.job_id, JobState.SUCCEEDED)
    gone = released(requested.job_id)

    world.feed(early[0])
    world.feed(late[1])
    assert world.feed(early[1]) == [], "attempt 1 reports after attempt 2"
    world.feed(ended.model_copy(update={"attempt": 2}))
    world.feed(gone.model_copy(update={"attempt": 2}))
    assert world.states(run) == {"a": "running"}, "x of attempt 2 is not there yet"
    assert world.feed(early[0]) == []
    world.feed(late[0])

    assert world.states(run) == {"a": "succeeded"}
    left = {one.name: one.artifact for one in late}
    assert world.step(run, "a").outputs == left
    world.take_over()


def test_a_step_fails_whose_last_attempt_reported_no_output() -> None:
    world = PipelineRun()
    world.apply(pipeline({"a": {"out": ["x"]}}))
    run = world.begin()
    (requested,) = world.jobs.values()
    world.feed(*world.outputs_of(requested))
    ended = changed(requested.job_id, JobState.SUCCEEDED)
    world.feed(ended.model_copy(update={"attempt": 2}))
    world.feed(released(requested.job_id).model_copy(update={"attempt": 2}))
    world.tick(601)
    assert world.states(run) == {"a": "failed"}
    assert "output x" in world.run(run).reason


def test_a_step_ends_when_its_job_is_charged_and_each_job_counts_once() -> None:
    world = PipelineRun()
    world.apply(pipeline({"a": {"retry": {"max": 1}}, "b": {"after": ["a"]}}))
    run = world.begin()
    (first,) = world.jobs
    world.feed(changed(first, JobState.FAILED))
    assert world.states(run)["a"] == "running"
    world.feed(released(first))
    assert world.feed(released(first)) == []
    world.succeed(next(job_id for job_id in world.jobs if job_id != first))
    del world.jobs[first]
    world.succeed()
    assert world.run(run).state == "succeeded"
    assert world.run(run).gpu_seconds == 3 * JOB_GPU_S
    assert world.step(run, "a").gpu_seconds == 2 * JOB_GPU_S
    world.take_over()


def test_a_job_that_never_ran_ends_its_step_at_once() -> None:
    world = PipelineRun()
    world.apply(pipeline({"a": {}}))
    run = world.begin()
    waiting = changed(*world.jobs, JobState.CANCELLED)
    world.feed(waiting.model_copy(update={"previous": JobState.PENDING}))
    assert world.run(run).state == "failed"
    assert world.run(run).gpu_seconds == 0


def test_a_run_whose_last_job_goes_beyond_its_gpu_hours_is_not_failed_for_it() -> None:
    world = PipelineRun()
    hours = 1.5 * JOB_GPU_S / 3600
    world.apply(pipeline({"a": {}, "b": {"after": ["a"]}}, limits={"gpu_hours": hours}))
    run = world.begin()
    world.succeed()
    world.succeed()
    assert world.run(run).gpu_seconds == 2 * JOB_GPU_S
    assert world.run(run).state == "succeeded"


def test_a_job_without_an_output_fails_its_step_after_a_while() -> None:
    world = PipelineRun()
    world.apply(pipeline({"a": {"out": ["x"]}}))
    run = world.begin()
    world.end(*world.jobs, JobState.SUCCEEDED)
    world.tick(60)
    assert world.states(run) == {"a": "running"}
    world.tick(600)
    assert world.states(run) == {"a": "failed"}
    assert "output x" in world.run(run).reason


def test_outputs_that_a_step_does_not_declare_are_not_noted() -> None:
    world = PipelineRun()
    world.apply(pipeline({"a": {"out": ["x"]}}))
    world.begin()
    (requested,) = world.jobs.values()
    (written,) = world.outputs_of(requested)
    assert world.feed(written.model_copy(update={"name": "other"})) == []
    assert world.feed(written.model_copy(update={"job_id": "not-of-a-pipeline"})) == []


def test_a_fan_out_is_a_job_for_each_item_and_its_outputs_are_numbered() -> None:
    world = PipelineRun()
    steps = {
        "fit": {
            "each": [{"lr": 0.1}, {"lr": 0.2}],
            "job": job("fit", "${{ item.lr }}", hyperparameters={"lr": "${{ item.lr }}"}),
            "out": ["model"],
        },
        "pick": {"in": {"models": "fit.model"}, "out": ["best"]},
    }
    world.apply(pipeline(steps))
    world.begin()
    specs = [one.spec for one in world.jobs.values()]
    assert [spec.command for spec in specs] == [("fit", "0.1"), ("fit", "0.2")]
    assert [spec.hyperparameters for spec in specs] == [{"lr": 0.1}, {"lr": 0.2}]
    world.succeed()
    (pick,) = world.jobs.values()
    assert pick.spec.artifacts is not None
    assert [*pick.spec.artifacts.inputs] == ["models/0", "models/1"]


@pytest.mark.parametrize(
    ("when", "state"),
    [
        ("train.acc >= 0.9", "succeeded"),
        ("train.acc > 0.9", "skipped"),
        ("train.acc < 1 and params.mode == full", "succeeded"),
        ("train.acc < 1 and params.mode != full", "skipped"),
        ("params.size >= 10", "succeeded"),
        ("params.size == 10.0", "succeeded"),
        ("params.fast == true", "succeeded"),
        ("params.fast == True", "succeeded"),
        ("params.fast != false", "succeeded"),
        ("params.fast == 1", "skipped"),
    ],
)
def test_a_step_runs_only_if_its_condition_holds(when: str, state: str) -> None:
    world = PipelineRun()
    spec = pipeline(
        {
            "train": {"out": {"acc": "score"}},
            "export": {"when": when, "out": ["package"]},
            "ship": {"in": {"it": "export.package"}, "out": ["done"]},
        },
        params={"mode": "full", "size": 10, "fast": True},
    )
    world.apply(spec)
    run = world.begin()
    world.finish()
    assert world.states(run) == {"train": "succeeded", "export": state, "ship": state}
    assert world.run(run).state == "succeeded"


@pytest.mark.parametrize("other", [1.0, True])
def test_a_run_keeps_the_values_that_it_began_with(other: object) -> None:
    world = PipelineRun()
    steps = {"a": {}, "b": {"after": ["a"], "job": job("${{ params.n }}")}}
    world.apply(pipeline(steps, params={"n": 1}))
    world.begin()
    world.apply(pipeline(steps, params={"n": other}))
    world.succeed()
    (b,) = world.jobs.values()
    assert b.spec.command == ("1",)


def test_a_failed_step_cancels_its_siblings_and_blocks_what_needs_it() -> None:
    world = PipelineRun()
    steps = {"a": {"out": ["x"]}, "b": {"out": ["y"]}, "c": {"in": {"x": "a.x"}}}
    world.apply(pipeline(steps))
    run = world.begin()
    failing, sibling = world.jobs
    world.fail(failing)
    assert world.asked_to_stop == [sibling]
    assert world.states(run) == {"a": "failed", "b": "running", "c": "cancelled"}
    world.end(sibling, JobState.CANCELLED)
    assert world.states(run)["b"] == "cancelled"
    assert world.run(run).state == "failed"
    assert "step a failed: it exited with code 1 (user error)" in world.run(run).reason


def test_siblings_finish_if_the_pipeline_says_so() -> None:
    world = PipelineRun()
    steps = {
        "a": {"out": ["x"]},
        "b": {"out": ["y"]},
        "c": {"in": {"x": "a.x"}, "out": ["z"]},
        "d": {"in": {"y": "b.y"}, "out": ["z"]},
        "e": {"in": {"z": "c.z"}},
    }
    world.apply(pipeline(steps, siblings="finish"))
    run = world.begin()
    world.fail(next(iter(world.jobs)))
    world.finish()
    assert world.states(run) == {
        "a": "failed", "b": "succeeded", "c": "blocked", "d": "succeeded", "e": "blocked",
    }  # fmt: skip
    assert world.run(run).state == "failed"


def test_a_step_is_tried_again_for_the_causes_that_it_names() -> None:
    world = PipelineRun()
    retry = {"max": 2, "on": ["infrastructure"], "wait_minutes": 5}
    world.apply(pipeline({"a": {"out": ["x"], "retry": retry}}))
    run = world.begin()
    world.fail(*world.jobs, cause=FailureCause.INFRASTRUCTURE)
    assert world.states(run) == {"a": "deferred"}
    assert world.tick(299) == []
    (requested,) = world.tick(2)
    assert isinstance(requested, StepJobRequested)
    assert requested.tries == 2
    world.take_over()
    world.fail(*world.jobs, cause=FailureCause.USER_ERROR)
    assert world.states(run) == {"a": "failed"}


def test_a_cause_that_comes_after_the_end_of_the_job_still_counts() -> None:
    world = PipelineRun()
    world.apply(pipeline({"a": {"out": ["x"], "retry": {"max": 1, "on": ["hang"]}}}))
    run = world.begin()
    (job_id,) = world.jobs
    world.end(job_id, JobState.FAILED)
    assert world.states(run) == {"a": "running"}
    world.feed(failure(job_id, FailureCause.HANG))
    assert len(world.events(StepJobRequested)) == 2


def test_without_a_cause_a_step_fails_after_a_while() -> None:
    world = PipelineRun()
    world.apply(pipeline({"a": {"out": ["x"], "retry": {"max": 1, "on": ["hang"]}}}))
    run = world.begin()
    world.end(*world.jobs, JobState.FAILED)
    world.tick(20)
    assert world.states(run) == {"a": "failed"}


def test_a_job_that_quota_rejects_fails_its_step() -> None:
    world = PipelineRun()
    world.apply(pipeline({"a": {"out": ["x"]}}))
    run = world.begin()
    rejected = {"reason": "team nlp may use 0 GPUs", "submitted_at": world.now}
    world.feed(JobRejected.model_validate({"job_id": next(iter(world.jobs)), **rejected}))
    assert world.states(run) == {"a": "failed"}
    assert "may use 0 GPUs" in world.run(run).reason


def test_a_cancelled_run_ends_when_its_jobs_have() -> None:
    world = PipelineRun()
    world.apply(chain())
    run = world.begin()
    world.feed(RunCancelRequested(team=TEAM, run_id=run, user="ada"))
    assert world.run(run).state == "stopping"
    assert world.asked_to_stop == [*world.jobs]
    world.end(*world.jobs, JobState.CANCELLED)
    assert world.run(run).state == "cancelled"
    (refused,) = world.feed(RunCancelRequested(team=TEAM, run_id=run, user="ada"))
    assert isinstance(refused, PipelineRequestRefused)


def test_a_retried_run_continues_from_the_failed_step() -> None:
    world = PipelineRun()
    world.apply(chain())
    run = world.begin()
    world.succeed()
    world.fail(*world.jobs)
    assert world.states(run) == {"prepare": "succeeded", "train": "failed", "report": "cancelled"}
    before = world.requested
    world.feed(RunRetryRequested(team=TEAM, run_id=run, user="ada"))
    assert world.run(run).state == "running"
    (again,) = world.jobs.values()
    assert (again.step, again.tries) == ("train", 2)
    world.finish()
    assert world.requested == before + 2
    assert world.run(run).state == "succeeded"
    assert [event.result for event in world.events(RunEnded)] == ["failed", "succeeded"]  # type: ignore[attr-defined]
    world.take_over()


def test_other_teams_neither_cancel_nor_retry_a_run() -> None:
    world = PipelineRun()
    world.apply(chain())
    run = world.begin()
    for kind in (RunCancelRequested, RunRetryRequested):
        (refused,) = world.feed(kind(team="vision", run_id=run, user="eve"))
        assert isinstance(refused, PipelineRequestRefused)


def test_a_run_has_so_many_jobs_at_a_time_and_in_all() -> None:
    world = PipelineRun()
    steps = {f"s{number}": {"out": ["x"]} for number in range(6)}
    world.apply(pipeline(steps, limits={"parallel": 2, "jobs": 4}))
    run = world.begin()
    most = 0
    while world.jobs:
        most = max(most, len(world.jobs))
        world.succeed(next(iter(world.jobs)))
    assert most == 2
    assert world.run(run).state == "failed"
    assert "limits.jobs" in world.run(run).reason


def test_a_run_has_limits_of_time_and_gpu_hours() -> None:
    world = PipelineRun()
    world.apply(pipeline({"a": {"out": ["x"]}}, limits={"hours": 1, "gpu_hours": 2}))
    slow = world.begin()
    world.tick(3601)
    assert world.run(slow).state == "stopping"
    assert "limits.hours" in world.run(slow).reason
    world.end(world.asked_to_stop[-1], JobState.CANCELLED)
    world.jobs.clear()
    costly = world.begin()
    released = {
        "job_id": next(iter(world.jobs)),
        "attempt": 1,
        "reason": "restarting",
        "allocated_at": world.now,
        "gpu_seconds": 3 * 3600,
    }
    world.feed(GangReleased.model_validate(released))
    assert world.feed(GangReleased.model_validate(released)) == []
    assert world.run(costly).gpu_seconds == 3 * 3600
    assert "3.00 GPU-hours" in world.run(costly).reason


def test_a_step_that_waits_for_its_next_try_leaves_its_room_to_others() -> None:
    world = PipelineRun()
    steps = {"a": {"out": ["x"], "retry": {"max": 1, "wait_minutes": 60}}, "b": {"out": ["y"]}}
    world.apply(pipeline(steps, limits={"parallel": 1}))
    run = world.begin()
    assert world.states(run) == {"a": "running", "b": "ready"}
    world.fail(*world.jobs)
    assert world.states(run) == {"a": "deferred", "b": "running"}
    world.tick(3601)
    assert world.states(run)["a"] == "deferred"
    world.succeed()
    world.tick()
    world.finish()
    assert world.states(run) == {"a": "succeeded", "b": "succeeded"}


def test_shell_characters_in_values_stay_values() -> None:
    world = PipelineRun()
    steps = {"a": {"job": {"run": "echo ${{ params.text }}", "resources": {"gpus": 1}}}}
    world.apply(pipeline(steps, params={"text": ""}))
    world.begin(text="; rm -rf $HOME `id` '\"")
    (requested,) = world.jobs.values()
    assert shlex.split(requested.spec.run or "") == ["echo", "; rm -rf $HOME `id` '\""]


def test_a_value_that_makes_the_job_invalid_fails_the_step() -> None:
    world = PipelineRun()
    steps = {"a": {"job": job("x", "${{ params.text }}"), "out": ["y"]}}
    world.apply(pipeline(steps, params={"text": "a"}))
    run = world.begin(text="a\0b")
    assert world.states(run) == {"a": "failed"}
    assert "NUL" in world.run(run).reason
    ended = list(world.events(StepEnded))
    assert len(ended) == 1


def test_reports_of_other_jobs_lead_to_nothing() -> None:
    world = PipelineRun()
    world.apply(chain())
    world.begin()
    strange = StepOutputWritten.model_validate(
        {"job_id": "other", "attempt": 1, "node_id": "n", "name": "x",
         "artifact": {"digest": "0" * 32}}
    )  # fmt: skip
    assert world.feed(strange) == []
    assert world.feed(changed("other", JobState.FAILED)) == []
