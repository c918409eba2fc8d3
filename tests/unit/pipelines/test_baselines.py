"""A candidate and its baseline: the registry's champion, and inputs that may be missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gangline_pipelines.core import aliases
from gangline_schemas.events.faults import FailureCause
from gangline_schemas.events.registry import GateRemoved
from gangline_schemas.events.scheduling import ResumePointChanged
from gangline_schemas.job import RESUME_PROBLEM, JobState
from gangline_schemas.pipeline_file import PipelineSpec
from gangline_schemas.yaml_core import load_yaml
from support.builders.pipelines import TEAM, PipelineRun, job, pipeline
from support.builders.registry import ALIAS, MODEL, gate_set, moved

COMPARED: dict[str, dict[str, Any]] = {
    "train": {"out": ["model"]},
    "champion": {"out": ["model"], "when": "params.first == false"},
    "evaluate": {
        "in": {"model": "train.model", "baseline": "champion.model or none"}, "out": ["scores"],
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


NAMED = f"{MODEL}@{ALIAS}"
AGAINST: dict[str, dict[str, Any]] = {
    "champion": {"resume": NAMED, "job": job("export"), "out": ["model"]},
    "evaluate": {"in": {"baseline": "champion.model or none"}, "out": ["scores"]},
}


def against(*events: Any) -> tuple[PipelineRun, str]:
    """A run of the pipeline after these events of the registry."""
    world = PipelineRun()
    for event in events:
        world.feed(event)
    world.apply(pipeline(AGAINST))
    return world, world.begin()


def test_while_no_version_has_the_alias_the_step_is_skipped() -> None:
    world, run = against(gate_set())
    assert world.step(run, "champion").reason == f"resume: no version has {NAMED} yet"
    world.finish()
    assert world.states(run) == {"champion": "skipped", "evaluate": "succeeded"}
    world.take_over()


def test_a_step_starts_from_the_checkpoint_of_the_version_that_has_the_alias() -> None:
    world, first = against(gate_set(), moved(1))
    (export,) = world.jobs.values()
    assert (export.spec.resume_from, export.spec.checkpoint.resume) == ("job-1", "100")
    start = world.step(first, "champion").starts_from
    assert start is not None
    assert (start.version, start.checkpoint.attempt) == (1, 2)
    assert export.start is not None, "services may have forgotten its job"
    assert (export.start.commit_key, export.start.world_size) == ("job-1/100", 2)
    world.finish()
    same = world.begin()
    world.finish()
    assert {*world.states(same).values()} == {"cached"}
    world.feed(moved(2))
    other = world.begin()
    assert world.step(other, "champion").why == f"changed since {same}: resume"
    world.finish()
    assert world.states(other)["champion"] == "succeeded"
    world.feed(moved(1))  # rolled back
    back = world.begin()
    world.finish()
    assert world.states(back)["champion"] == "cached"
    assert world.step(back, "champion").starts_from == start
    world.take_over()


def test_a_step_keeps_its_checkpoint_when_the_alias_moves_before_its_next_try() -> None:
    world = PipelineRun()
    world.feed(gate_set())
    world.feed(moved(1))
    world.apply(pipeline({"champion": {**AGAINST["champion"], "retry": {"max": 1}}}))
    run = world.begin()
    world.feed(moved(2))
    (tried,) = world.jobs
    world.fail(tried, FailureCause.NODE)
    (again,) = world.jobs.values()
    assert again.job_id != tried
    assert again.spec.resume_from == "job-1"
    world.fail(again.job_id, FailureCause.NODE)
    reason = f"it exited with code 1 (node); {NAMED} is version 1"
    assert world.step(run, "champion").reason == reason


OTHER_TEAM = (gate_set(team="vision"), moved(1, team="vision"))


@pytest.mark.parametrize(
    ("events", "words"),
    [
        ((), f"resume: no gate of team {TEAM} protects {NAMED}; apply one"),
        (OTHER_TEAM, f"resume: no gate of team {TEAM} protects {NAMED}; apply one"),
        (
            (gate_set(), moved(1), GateRemoved(team=TEAM, model=MODEL, user="anna")),
            "resume: no gate",
        ),
        ((gate_set(), moved(1), gate_set(aliases=["other"])), "resume: no gate"),
        ((gate_set(), moved(3, files=True)), f"resume: version 3 of {MODEL} is made of files"),
    ],
)
def test_an_alias_without_a_checkpoint_fails_the_step(events: Any, words: str) -> None:
    world, run = against(*events)
    step = world.step(run, "champion")
    assert step.state == "failed"
    assert step.reason.startswith(words)
    assert world.run(run).state == "failed"


def test_a_checkpoint_that_is_gone_fails_the_step_with_the_version() -> None:
    world, run = against(gate_set(), moved(3))
    (export,) = world.jobs
    world.end(export, JobState.FAILED, f"{RESUME_PROBLEM}run job-3 has no committed checkpoint")
    world.tick(60)
    assert world.step(run, "champion").state == "failed"
    assert world.run(run).reason == (
        f"step champion failed: resume: {NAMED} is version 3, and no job can start from its "
        "checkpoint: run job-3 has no committed checkpoint; promote another version"
    )


def test_a_gate_that_is_applied_again_leaves_its_aliases_where_they_are() -> None:
    world, _ = against(gate_set(), moved(1))
    assert world.feed(gate_set()) == []
    assert world.feed(moved(1)) == []
    assert [*world.state.aliases] == [f"{TEAM}/{NAMED}"]


def test_aliases_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aliases, "MOST_ALIASES", 3)
    world = PipelineRun()
    for number in range(5):
        world.feed(gate_set(model=f"m{number}"))
    assert [*world.state.aliases] == [f"{TEAM}/m{number}@{ALIAS}" for number in (2, 3, 4)]


def run_page(name: str, model: str) -> tuple[PipelineRun, str]:
    """A run of the pipeline on a page, before its model has a champion."""
    page = (Path(__file__).parents[3] / "docs" / name).read_text()
    found = [block.split("```")[0] for block in page.split("```yaml\n")[1:]]
    content = load_yaml(next(block for block in found if f"{model}@champion" in block))
    world = PipelineRun()
    world.feed(gate_set(model=model))
    world.apply(PipelineSpec.model_validate({"name": "p", "team": TEAM, **content}))
    return world, world.begin()


@pytest.mark.parametrize(
    ("page", "model"), [("reference/pipeline-file.md", "small"), ("guides/automate.md", MODEL)]
)
def test_the_pipelines_of_the_pages_compare_once_there_is_a_champion(page: str, model: str) -> None:
    world, run = run_page(page, model)
    skipped = []
    for _ in range(2):
        while world.jobs or world.effects():
            world.check()
            for name in [*world.jobs]:
                key = f"{name}/100"
                at = {"job_id": name, "attempt": 1, "step": 100, "world_size": 1}
                saved = {"job_id": name, "checkpoint": {**at, "commit_key": key}}
                world.feed(ResumePointChanged.model_validate(saved))
            world.succeed()
            world.tick(6)
        assert world.run(run).state == "succeeded"
        skipped.append([name for name, one in world.states(run).items() if one == "skipped"])
        world.feed(moved(1).model_copy(update={"model": model}))
        run = world.begin()
    assert skipped == [["champion", "compare"], []]
