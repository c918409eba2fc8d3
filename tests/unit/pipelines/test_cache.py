"""The cache: which changes lead to a hit, which steps run, and why."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gangline_pipelines.core.model import Checked, StoreAway
from gangline_schemas.events.pipeline_requests import RunCancelRequested, RunRequested
from gangline_schemas.events.pipelines import CheckDeferred, OutputsChecked
from gangline_schemas.pipeline_file import PipelineSpec
from support.builders.pipelines import TEAM, PipelineRun, job, pipeline


def steps(**train: Any) -> dict[str, dict[str, Any]]:
    """Prepare -> train -> report, beside other."""
    return {
        "prepare": {"out": ["tokens"]},
        "train": {
            "in": {"data": "prepare.tokens"},
            "out": ["model"],
            "job": job("train", code_bundle="a" * 64, seed=1, hyperparameters={"lr": 0.1}),
            **train,
        },
        "report": {"in": {"model": "train.model"}, "out": ["page"]},
        "other": {"out": ["x"]},
    }


def ran_once() -> PipelineRun:
    world = PipelineRun()
    world.apply(pipeline(steps()))
    world.begin()
    world.finish()
    return world


def test_a_run_without_changes_requests_no_job() -> None:
    world = ran_once()
    before = world.requested
    run = world.begin()
    assert world.check() == 1, "one check decides it"
    assert world.requested == before
    assert set(world.states(run).values()) == {"cached"}
    assert world.run(run).state == "succeeded"
    assert world.step(run, "train").hit in world.state.runs
    world.take_over()


@pytest.mark.parametrize(
    ("job_of_train", "part"),
    [
        ({"hyperparameters": {"lr": 0.2}}, "command"),
        ({"env": {"A": "1"}}, "command"),
        ({"code_bundle": "b" * 64}, "code"),
        ({"seed": 2}, "seed"),
        ({"data_snapshot": "web@xxh3-" + "0" * 32}, "data"),
    ],
)
def test_a_change_runs_what_lies_downstream(job_of_train: dict[str, Any], part: str) -> None:
    world = ran_once()
    base = job("train", code_bundle="a" * 64, seed=1, hyperparameters={"lr": 0.1})
    world.apply(pipeline(steps(job={**base, **job_of_train})))
    world.salt = "new"
    run = world.begin()
    world.finish()
    states = {"prepare": "cached", "train": "succeeded", "report": "succeeded", "other": "cached"}
    assert world.states(run) == states
    assert world.step(run, "train").why.endswith(f": {part}")
    assert world.step(run, "report").why.endswith(": in.model")


@pytest.mark.parametrize(
    "job_of_train",
    [
        {"priority": 10},
        {"resources": {"gpus": 2}},
        {"max_runtime_hours": 3},
        {"restart": {"max": 0}},
    ],
)
def test_where_and_when_a_job_runs_is_not_in_its_key(job_of_train: dict[str, Any]) -> None:
    world = ran_once()
    base = job("train", code_bundle="a" * 64, seed=1, hyperparameters={"lr": 0.1})
    world.apply(pipeline(steps(job={**base, **job_of_train})))
    run = world.begin()
    world.finish()
    assert set(world.states(run).values()) == {"cached"}


def test_a_step_that_leaves_the_same_bytes_leads_to_hits() -> None:
    world = ran_once()
    made = world.step(next(iter(world.state.runs)), "train").outputs["model"]
    base = job("train", code_bundle="b" * 64, seed=1, hyperparameters={"lr": 0.1})
    world.apply(pipeline(steps(job=base)))
    run = world.begin()
    world.finish()
    assert world.step(run, "train").outputs["model"] == made
    assert world.states(run)["report"] == "cached"


def test_a_missing_output_runs_its_step_again_and_only_that() -> None:
    world = ran_once()
    first = next(iter(world.state.runs))
    gone = world.step(first, "train").outputs["model"].digest
    run = world.begin()
    world.check(lambda digest: digest == gone)
    (requested,) = world.jobs.values()
    assert requested.step == "train"
    assert world.step(run, "train").why == f"the outputs of {first} are gone"
    world.finish()
    states = {"prepare": "cached", "train": "succeeded", "report": "cached", "other": "cached"}
    assert world.states(run) == states


def test_a_step_that_rests_on_a_missing_output_is_not_a_hit_by_trust() -> None:
    world = ran_once()
    gone = world.step(next(iter(world.state.runs)), "prepare").outputs["tokens"].digest
    run = world.begin()
    world.salt = "other bytes"
    world.check(lambda digest: digest == gone)
    world.finish()
    assert world.states(run) == {
        "prepare": "succeeded", "train": "succeeded", "report": "succeeded", "other": "cached",
    }  # fmt: skip


def test_nondeterministic_steps_run_each_time() -> None:
    world = PipelineRun()
    world.apply(pipeline({"a": {"out": ["x"], "cache": False}, "b": {"in": {"x": "a.x"}}}))
    for _ in range(2):
        run = world.begin()
        world.finish()
    assert world.states(run) == {"a": "succeeded", "b": "succeeded"}
    assert world.step(run, "a").why == "it has cache: false"
    assert world.step(run, "b").why == "it has no outputs to keep"


@pytest.mark.parametrize(
    ("image", "state"), [("python:3.12", "succeeded"), (f"python@sha256:{'0' * 64}", "cached")]
)
def test_a_step_in_an_image_is_a_hit_by_the_digest_alone(image: str, state: str) -> None:
    world = PipelineRun()
    world.apply(pipeline({"a": {"job": job("a", image=image), "out": ["x"]}}))
    world.begin()
    world.finish()
    run = world.begin()
    world.check()
    world.finish()
    assert world.states(run) == {"a": state}
    assert ("is a tag" in world.step(run, "a").why) == (state == "succeeded")


def test_another_team_has_another_cache() -> None:
    world = ran_once()
    other = pipeline(steps()).model_dump(mode="json")
    text = {**other, "team": "vision"}
    for step in text["steps"].values():
        step["job"]["team"] = "vision"
    world.apply(PipelineSpec.model_validate(text))
    world.feed(RunRequested(team="vision", pipeline="p"))
    assert {one.spec.team for one in world.jobs.values()} == {"vision"}
    assert len(world.jobs) == 2


def test_a_condition_on_a_hit_waits_for_the_check() -> None:
    world = PipelineRun()
    spec = pipeline({"a": {"out": {"acc": "score"}}, "b": {"when": "a.acc > 0", "out": ["x"]}})
    world.apply(spec)
    world.begin()
    world.finish()
    run = world.begin()
    assert world.states(run) == {"a": "checking", "b": "pending"}
    assert world.check() == 2
    assert world.states(run) == {"a": "cached", "b": "cached"}


def test_while_the_store_is_away_the_check_is_made_again() -> None:
    world = ran_once()
    run = world.begin()
    ((key, _),) = world.effects().items()
    (deferred,) = world.done(key, StoreAway("it does not answer"))
    assert isinstance(deferred, CheckDeferred)
    assert world.effects() == {}
    assert world.done(key, Checked(())) == [], "an old outcome counts no more"
    world.tick(1)
    assert world.effects() == {}
    world.take_over()
    world.tick(2)
    assert world.check() == 1
    assert set(world.states(run).values()) == {"cached"}


def test_the_store_may_be_away_for_weeks() -> None:
    world = ran_once()
    run = world.begin()
    world.state.runs[run] = replace(world.run(run), check_tries=40_000)
    ((key, _),) = world.effects().items()
    (deferred,) = world.done(key, StoreAway("it does not answer"))
    assert isinstance(deferred, CheckDeferred)
    assert (deferred.next_at - world.now).total_seconds() == 60


def test_the_outcome_of_a_check_may_come_after_the_run_was_cancelled() -> None:
    world = ran_once()
    run = world.begin()
    ((key, _),) = world.effects().items()
    world.feed(RunCancelRequested(team=TEAM, run_id=run, user="ada"))
    assert world.run(run).state == "cancelled"
    assert world.effects() == {}
    assert world.done(key, Checked(())) == []


def test_a_long_chain_without_changes_costs_one_check_and_no_job() -> None:
    world = PipelineRun()
    long = {"s0": {"out": ["x"]}}
    for number in range(1, 100):
        long[f"s{number}"] = {"in": {"x": f"s{number - 1}.x"}, "out": ["x"]}
    world.apply(pipeline(long))
    world.begin()
    world.finish()
    before = world.requested
    run = world.begin()
    assert world.check() == 1
    assert world.requested == before == 100
    assert set(world.states(run).values()) == {"cached"}
    assert len(world.events(OutputsChecked)) == 1
