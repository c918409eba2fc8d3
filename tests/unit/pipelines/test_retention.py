"""Retention of outputs: what goes, what stays, and that no job runs meanwhile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gangline_pipelines.core.model import Deleted, DeleteOutputs
from gangline_pipelines.service.executor import OutputChecker
from gangline_schemas.artifacts import (
    Artifact,
    ArtifactFile,
    ArtifactManifest,
    manifest_key,
    object_key,
)
from gangline_schemas.events.pipeline_requests import PipelineRemoveRequested, RunRetryRequested
from gangline_schemas.events.pipelines import PipelineRequestRefused, SweepBegun, SweepEnded
from gangline_schemas.job import JobState
from gangline_storage import LocalStore, digest_bytes
from support.builders.pipelines import TEAM, PipelineRun, job, pipeline

DAY_S = 86_400.0


def applied(retention: dict[str, Any] | None, **fields: Any) -> PipelineRun:
    world = PipelineRun()
    world.apply(pipeline({"a": {"out": ["x"]}, "b": {"in": {"x": "a.x"}, "out": ["y"]}},
                         retention=retention, **fields))  # fmt: skip
    return world


def ran(world: PipelineRun, salt: str = "") -> str:
    """A run that ended; with another salt its outputs are others."""
    world.salt = salt
    run = world.begin()
    world.finish()
    return run


def sweeps(world: PipelineRun) -> dict[str, DeleteOutputs]:
    found = world.decider.effects(world.state, world.soft)
    return {key: one for key, one in found.items() if isinstance(one, DeleteOutputs)}


def swept(world: PipelineRun, after_s: float) -> DeleteOutputs | None:
    """The sweep that begins after so long, once it was made."""
    world.tick(after_s)
    world.tick(1)
    for key, one in sweeps(world).items():
        world.done(key, Deleted(artifacts=1))
        return one
    return None


def digests(world: PipelineRun, run: str) -> set[str]:
    outputs = (world.step(run, name).outputs.values() for name in ("a", "b"))
    return {one.digest for some in outputs for one in some}


def test_without_retention_nothing_is_deleted() -> None:
    world = applied(None)
    ran(world)
    assert swept(world, 400 * DAY_S) is None


def test_outputs_go_after_so_many_days_and_the_step_runs_again() -> None:
    world = applied({"days": 2})
    first = ran(world)
    young = swept(world, 1.5 * DAY_S)
    assert young is not None
    assert young.keep == digests(world, first)
    old = swept(world, 1.1 * DAY_S)
    assert old is not None
    assert old.keep == frozenset()
    assert world.state.kept == {}
    before = world.requested
    again = world.begin()
    world.finish()
    assert world.requested == before + 2, "it is no hit of the cache any more"
    assert world.run(again).state == "succeeded"
    world.take_over()


def test_a_hit_of_the_cache_is_a_use() -> None:
    world = applied({"days": 2})
    ran(world)
    swept(world, 1.5 * DAY_S)
    second = world.begin()
    world.check()
    assert set(world.states(second).values()) == {"cached"}
    later = swept(world, 1.5 * DAY_S)
    assert later is not None
    assert later.keep == digests(world, second)


def test_the_newest_runs_keep_their_outputs() -> None:
    world = applied({"runs": 1})
    ran(world)
    world.apply(pipeline({"a": {"out": ["x"], "cache": False}}, retention={"runs": 1}))
    second = world.begin()
    world.finish()
    found = swept(world, 2 * DAY_S)
    assert found is not None
    assert found.keep == {one.digest for one in world.step(second, "a").outputs.values()}


def test_the_runs_of_a_pipeline_that_was_removed_and_applied_again_are_the_newest() -> None:
    spec = pipeline({"a": {"out": ["x"], "cache": False}}, retention={"runs": 1})
    world = PipelineRun()
    world.apply(spec)
    for salt in ("1", "2"):
        ran(world, salt)
    world.feed(PipelineRemoveRequested(team=TEAM, pipeline="p", user="ada"))
    world.tick(1)
    world.apply(spec)
    newest = ran(world, "3")
    found = swept(world, 2 * DAY_S)
    assert found is not None
    assert found.keep == {one.digest for one in world.step(newest, "a").outputs.values()}


def test_each_team_is_swept_in_turn_where_ticks_are_rare() -> None:
    world = applied({"days": 2})
    for team in ("vision", "speech"):
        steps = {"a": {"out": ["x"]}}
        world.apply(pipeline(steps, team=team, retention={"days": 2}))
    begun = []
    for _ in range(6):
        events = world.tick(1.1 * DAY_S)
        begun += [event.team for event in events if isinstance(event, SweepBegun)]
        for key in sweeps(world):
            world.done(key, Deleted(artifacts=0))
    assert sorted(begun[:3]) == sorted([TEAM, "vision", "speech"])
    assert begun[3:] == begun[:3]


def test_no_step_begins_while_a_team_is_swept_and_a_busy_team_is_not_swept() -> None:
    world = applied({"days": 1})
    run = world.begin()
    world.tick(1.5 * DAY_S)
    assert not world.events(SweepBegun), "a job of the team runs"
    world.finish()
    world.tick(1)
    assert len(world.events(SweepBegun)) == 1
    world.tick(1)
    assert sweeps(world), "the end of the run was just now, so it is kept"
    world.apply(pipeline({"c": {"out": ["z"]}}, retention={"days": 1}))
    later = world.begin()
    assert world.states(later) == {"c": "ready"}
    world.take_over()
    world.tick(1)
    ((key, one),) = sweeps(world).items()
    assert digests(world, run) <= one.keep
    world.done(key, Deleted(problem="the store is away"))
    assert world.states(later) == {"c": "running"}
    assert [event.problem for event in world.events(SweepEnded)] == ["the store is away"]  # type: ignore[attr-defined]


def swept_while_busy() -> tuple[PipelineRun, str]:
    """A job of a team that never pauses ends well while the team is swept."""
    world = applied({"days": 1})
    ran(world)
    world.salt = "new"
    steps = {
        "a": {"job": job("other"), "out": ["x"]}, "b": {"in": {"x": "a.x"}, "out": ["y"]}
    }  # fmt: skip
    world.apply(pipeline(steps, retention={"days": 1}))
    run = world.begin()
    world.tick(1.9 * DAY_S)
    assert not world.events(SweepBegun), "a job runs"
    world.tick(0.2 * DAY_S)
    world.tick(1)
    ((key, one),) = sweeps(world).items()
    assert one.keep == frozenset()
    world.succeed()
    world.take_over()
    assert world.states(run) == {"a": "running", "b": "pending"}
    world.done(key, Deleted(artifacts=2))
    return world, run


def test_outputs_that_a_job_left_while_its_team_was_swept_are_looked_for() -> None:
    world, run = swept_while_busy()
    assert world.states(run)["a"] == "checking"
    world.check()
    world.take_over()
    assert world.states(run) == {"a": "succeeded", "b": "running"}
    world.finish()
    assert world.run(run).state == "succeeded"
    again = world.begin()
    world.check()
    assert set(world.states(again).values()) == {"cached"}, "its outputs are in the cache"


def test_a_step_whose_outputs_were_deleted_as_they_were_left_runs_again() -> None:
    world, run = swept_while_busy()
    requested = world.requested
    world.check(missing=lambda _: True)
    assert world.states(run) == {"a": "running", "b": "pending"}
    assert world.requested == requested + 1
    assert "are gone" in world.step(run, "a").why
    world.take_over()
    world.finish()
    assert world.run(run).state == "succeeded"


def test_a_run_whose_outputs_went_is_not_continued() -> None:
    world = applied({"days": 1})
    run = world.begin()
    world.succeed()
    ((job_id, _),) = world.jobs.items()
    world.jobs.clear()
    world.end(job_id, JobState.FAILED)
    world.tick(60)
    assert world.run(run).state == "failed"
    for _ in range(2):  # the first sweep began when the run ended
        swept(world, 2 * DAY_S)
    (refused,) = world.feed(RunRetryRequested(team=TEAM, run_id=run, user="ada"))
    assert isinstance(refused, PipelineRequestRefused)
    assert "were deleted" in refused.reason


def stored(store: LocalStore, *texts: bytes) -> Artifact:
    files = tuple(
        ArtifactFile(path=f"f{number}", size_bytes=len(text), xxh3=digest_bytes(text))
        for number, text in enumerate(texts)
    )
    for file, text in zip(files, texts, strict=True):
        store.put(object_key(TEAM, file), text)
    raw = ArtifactManifest(files=files).encode()
    store.put(manifest_key(TEAM, digest_bytes(raw)), raw)
    return Artifact(digest=digest_bytes(raw))


def test_files_that_another_artifact_has_too_stay(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    kept, gone = stored(store, b"both", b"mine"), stored(store, b"both", b"theirs")
    other = "teams/vision/artifacts/objects/aa/b"
    store.put(other, b"x")
    checker = OutputChecker(store, read_bytes=1000)
    found = checker("sweep:nlp:1", DeleteOutputs(TEAM, frozenset({kept.digest})))
    assert found == Deleted(artifacts=1, objects=1, size_bytes=6)
    left = {one.key for one in store.list("")}
    assert len(left) == 4
    assert {other, manifest_key(TEAM, kept.digest)} <= left
    assert manifest_key(TEAM, gone.digest) not in left


@pytest.mark.parametrize("harm", [b"", b"{}"])
def test_a_manifest_that_stays_and_is_damaged_keeps_all_files(tmp_path: Path, harm: bytes) -> None:
    store = LocalStore(tmp_path)
    kept, gone = stored(store, b"mine"), stored(store, b"theirs")
    store.put(manifest_key(TEAM, kept.digest), harm)
    found = OutputChecker(store, read_bytes=1000)(
        "s", DeleteOutputs(TEAM, frozenset({kept.digest}))
    )
    assert isinstance(found, Deleted)
    assert (found.artifacts, found.objects) == (1, 0)
    assert "damaged" in found.problem
    assert manifest_key(TEAM, gone.digest) not in {one.key for one in store.list("")}
