"""Pipelines as lists show them."""

from __future__ import annotations

from gangline_gateway import pipelines_state
from gangline_schemas.events.pipeline_requests import PipelineRemoveRequested
from support.builders.pipelines import TEAM, PipelineRun, pipeline


def test_the_last_run_of_a_pipeline_that_was_removed_and_applied_again_is_the_newest() -> None:
    """Its runs are counted from 1 again."""
    world = PipelineRun()
    spec = pipeline({"a": {"cache": False, "out": ["x"]}})
    world.apply(spec)
    for _ in range(2):
        world.begin()
        world.finish()
    world.feed(PipelineRemoveRequested(team=TEAM, pipeline="p", user="ada"))
    world.apply(spec)
    newest = world.begin()
    (shown,) = pipelines_state.pipelines(world.state, lambda _: True, world.now)
    assert shown.last is not None
    assert (shown.last.run_id, shown.last.number) == (newest, 1)
