"""A candidate and its baseline: inputs of a step that may be skipped."""

from __future__ import annotations

from support.builders.pipelines import PipelineRun, pipeline

COMPARED = {
    "train": {"out": ["model"]},
    "champion": {"out": ["model"], "when": "params.first == false"},
    "evaluate": {
        "in": {"model": "train.model", "baseline": "champion.model?"}, "out": {"scores": "folder"},
    },
    "compare": {"in": {"scores": "evaluate.scores"}, "after": ["champion"], "out": ["report"]},
}  # fmt: skip


def compared(*, first: bool) -> PipelineRun:
    world = PipelineRun()
    world.apply(pipeline(COMPARED, params={"first": first}))
    return world


def test_an_input_that_may_be_missing_is_left_out_if_its_step_was_skipped() -> None:
    world = compared(first=True)
    run = world.begin()
    world.succeed()
    (evaluate,) = world.jobs.values()
    assert evaluate.spec.artifacts is not None
    assert [*evaluate.spec.artifacts.inputs] == ["model"]
    world.succeed()
    states = {
        "train": "succeeded", "champion": "skipped", "evaluate": "succeeded", "compare": "skipped",
    }  # fmt: skip
    assert world.states(run) == states
    assert world.run(run).state == "succeeded"
    world.take_over()


def test_an_input_that_may_be_missing_is_waited_for_and_is_part_of_the_key() -> None:
    world = compared(first=True)
    without = world.begin()
    world.finish()
    run = world.begin(first=False)
    world.check()
    assert world.states(run)["evaluate"] == "pending"
    world.finish()
    assert {*world.states(run).values()} == {"cached", "succeeded"}
    assert world.step(run, "evaluate").why == f"changed since {without}: in.baseline"
    assert world.step(run, "compare").state == "succeeded"


def test_without_changes_a_step_without_its_baseline_is_a_hit_even_if_outputs_are_gone() -> None:
    world = compared(first=True)
    run = world.begin()
    world.finish()
    gone = world.step(run, "evaluate").outputs["scores"].digest
    again = world.begin()
    world.check(lambda digest: digest == gone)
    assert world.states(again)["train"] == "cached"
    assert world.states(again)["evaluate"] == "running"
    world.finish()
    last = world.begin()
    world.finish()
    assert {*world.states(last).values()} == {"cached", "skipped"}


def test_an_input_whose_step_failed_is_not_left_out() -> None:
    world = compared(first=False)
    run = world.begin()
    train, champion = world.jobs
    world.fail(champion)
    world.tick(60)
    assert world.states(run)["evaluate"] == "cancelled"
    world = PipelineRun()
    world.apply(pipeline(COMPARED, params={"first": False}, siblings="finish"))
    run = world.begin()
    train, champion = world.jobs
    world.fail(champion)
    world.tick(60)
    world.succeed(train)
    assert world.states(run)["evaluate"] == "blocked"
