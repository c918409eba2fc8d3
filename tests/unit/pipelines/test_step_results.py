"""Results of steps other than outputs: the newest checkpoint, and the best trial of a study."""

from __future__ import annotations

from gangline_schemas.events.pipeline_requests import RunCancelRequested
from gangline_schemas.events.pipelines import StepStudyRequested, StepStudyStopRequested
from gangline_schemas.events.scheduling import ResumePointChanged
from gangline_schemas.events.studies import BestTrial, StudyEnded
from gangline_schemas.pipeline_file import PipelineSpec
from support.builders.pipelines import TEAM, PipelineRun, job, pipeline


def saved(job_id: str, step: int) -> ResumePointChanged:
    ref = {"job_id": job_id, "attempt": 1, "step": step, "world_size": 1, "commit_key": "k"}
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
