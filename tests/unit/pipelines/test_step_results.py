"""Results of steps other than outputs: the newest checkpoint, and the best trial of a study."""

from __future__ import annotations

from gangline_schemas.events.pipeline_requests import RunCancelRequested, RunRetryRequested
from gangline_schemas.events.pipelines import StepStudyRequested, StepStudyStopRequested
from gangline_schemas.events.scheduling import ResumePointChanged
from gangline_schemas.events.studies import BestTrial, StudyEnded
from gangline_schemas.job import RESUME_PROBLEM, JobState
from gangline_schemas.pipeline_file import PipelineSpec
from support.builders.pipelines import TEAM, PipelineRun, job, pipeline


def saved(job_id: str, step: int) -> ResumePointChanged:
    key = f"{job_id}/{step}"
    ref = {"job_id": job_id, "attempt": 1, "step": step, "world_size": 1, "commit_key": key}
    return ResumePointChanged.model_validate({"job_id": job_id, "checkpoint": ref})


def test_a_step_may_start_from_the_checkpoint_of_another_also_if_that_was_cached() -> None:
    world = PipelineRun()
    steps = {"train": {"out": {"loss": "score"}}, "export": {"resume": "train", "out": ["model"]}}
    world.apply(pipeline(steps))
    run = world.begin()
    (train,) = world.jobs
    world.feed(saved(train, 100))
    assert world.feed(saved(train, 100)) == []
    world.succeed()
    assert world.states(run) == {"train": "running", "export": "pending"}
    world.feed(saved(train, 200))
    world.tick(6)
    assert world.step(run, "train").saved_step == 200
    (export,) = world.jobs.values()
    assert export.spec.resume_from == train
    world.succeed()
    assert world.run(run).state == "succeeded"
    again = world.begin()
    world.finish()
    assert set(world.states(again).values()) == {"cached"}
    assert world.step(again, "train").job_id == train
    world.take_over()


EXPORTED = {"train": {"out": {"loss": "score"}}, "export": {"resume": "train", "out": ["model"]}}


def exported() -> tuple[PipelineRun, str]:
    """A run whose step started from the checkpoint of another, which the job left."""
    world = PipelineRun()
    world.apply(pipeline(EXPORTED))
    world.begin()
    (train,) = world.jobs
    world.feed(saved(train, 100))
    world.succeed()
    world.tick(6)
    world.succeed()
    return world, train


def with_other_export(world: PipelineRun) -> None:
    """The same `train`, and an `export` that has to run."""
    world.apply(pipeline({**EXPORTED, "export": {**EXPORTED["export"], "job": job("other")}}))


def test_a_hit_without_its_checkpoint_runs_again_if_another_step_starts_from_it() -> None:
    world, train = exported()
    with_other_export(world)
    run = world.begin()
    world.check(lambda one: one == f"{train}/100")
    (again,) = world.jobs
    assert world.states(run) == {"train": "running", "export": "pending"}
    assert world.step(run, "train").why == f"the checkpoint of {train} is gone"
    world.feed(saved(again, 100))
    world.succeed()
    world.tick(6)
    (export,) = world.jobs.values()
    assert export.spec.resume_from == again
    world.take_over()


def test_a_hit_whose_job_the_scheduler_may_have_forgotten_runs_again() -> None:
    world, train = exported()
    with_other_export(world)
    world.tick(29 * 86400)
    run = world.begin()
    world.check()
    assert world.step(run, "train").why.startswith(f"{train} ended too long ago")


def test_a_hit_whose_checkpoints_were_not_noted_is_none_for_a_step_that_starts_from_it() -> None:
    world = PipelineRun()
    world.apply(pipeline({"train": EXPORTED["train"]}))
    world.begin()
    (train,) = world.jobs
    world.succeed()
    world.apply(pipeline(EXPORTED))
    run = world.begin()
    world.check()
    assert world.step(run, "train").why.startswith(f"no checkpoint of {train} is known")


def test_a_retry_runs_again_the_step_from_which_another_could_not_start() -> None:
    world, train = exported()
    with_other_export(world)
    run = world.begin()
    world.check()
    (export,) = world.jobs
    del world.jobs[export]
    world.end(export, JobState.FAILED, f"{RESUME_PROBLEM}run {train} has no committed checkpoint")
    world.tick(60)
    assert world.states(run) == {"train": "cached", "export": "failed"}
    world.feed(RunRetryRequested(team=TEAM, run_id=run, user="ada"))
    world.check()
    assert world.states(run) == {"train": "running", "export": "pending"}
    assert world.step(run, "train").why == f"the checkpoint of {train} is gone"
    world.take_over()


def test_a_step_that_left_no_checkpoint_fails_if_another_starts_from_it() -> None:
    world = PipelineRun()
    world.apply(pipeline({"train": {"out": ["x"]}, "export": {"resume": "train"}}))
    run = world.begin()
    world.succeed()
    world.tick(60)
    assert world.states(run)["train"] == "running"
    world.tick(600)
    assert world.states(run)["train"] == "failed"
    assert "no committed checkpoint" in world.run(run).reason


STUDY = {
    "objective": {"metric": "loss"},
    "space": {"lr": {"type": "float", "low": 0.1, "high": 1.0}},
    "job": {"command": ["train", "${{ lr }}"], "resources": {"gpus": 1}},
}


def with_study() -> PipelineSpec:
    steps = {
        "prepare": {"job": job("prepare"), "out": ["tokens"]},
        "search": {"study": STUDY, "in": {"data": "prepare.tokens"}},
        "train": {
            "job": job("train", "${{ best.search.lr }}"), "when": "search.best < 3", "out": ["m"],
        },
        "export": {"resume": "search", "job": job("export"), "out": ["m"]},
    }  # fmt: skip
    return PipelineSpec.model_validate({"name": "p", "team": TEAM, "steps": steps})


def test_a_step_may_be_a_study_whose_best_trial_is_its_result() -> None:
    world = PipelineRun()
    world.apply(with_study())
    run = world.begin()
    world.succeed()
    (asked,) = world.events(StepStudyRequested)
    assert isinstance(asked, StepStudyRequested)
    tokens = world.step(run, "prepare").outputs["tokens"].digest
    assert asked.spec.job["artifacts"] == {"inputs": {"data": tokens}, "outputs": {}}
    best = BestTrial(number=3, parameters={"lr": 0.25}, value=2.5, job_id="s-t3")
    ended = StudyEnded(study_id=asked.study_id, reason="trials", best=best)
    world.feed(ended)
    assert world.feed(ended) == []
    train, export = world.jobs.values()
    assert train.spec.command == ("train", "0.25")
    assert export.spec.resume_from == "s-t3"
    world.finish()
    assert world.run(run).state == "succeeded"
    world.take_over()


def test_a_study_without_a_result_fails_its_step_and_a_cancelled_run_stops_it() -> None:
    world = PipelineRun()
    world.apply(with_study())
    run = world.begin()
    world.succeed()
    (asked,) = world.events(StepStudyRequested)
    world.feed(StudyEnded(study_id=asked.study_id, reason="failed"))  # type: ignore[attr-defined]
    assert world.states(run)["search"] == "failed"
    again = world.begin()
    world.check()
    world.feed(RunCancelRequested(team=TEAM, run_id=again, user="ada"))
    (stopping,) = world.events(StepStudyStopRequested)
    second = world.events(StepStudyRequested)[-1]
    assert stopping.study_id == second.study_id  # type: ignore[attr-defined]
    world.feed(StudyEnded(study_id=second.study_id, reason="stopped"))  # type: ignore[attr-defined]
    assert world.run(again).state == "cancelled"
