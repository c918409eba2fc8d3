"""The cost of one input or Tick, whatever pipelines a team has and however long it ran them."""

from __future__ import annotations

from collections.abc import ItemsView, ValuesView
from datetime import datetime
from typing import Any

import pytest

from gangline_bus.codec import Received
from gangline_pipelines.core import evolve, requests, stepping, triggers
from gangline_pipelines.core.graph import Instance
from gangline_pipelines.core.model import Run
from gangline_schemas.catalog import Topic
from gangline_schemas.envelope import Envelope
from gangline_schemas.events.pipeline_requests import (
    PipelineRemoveRequested,
    RunRequested,
    SnapshotAnnounced,
)
from gangline_schemas.events.pipelines import (
    PipelineRequestRefused,
    RunEnded,
    RunQueued,
    RunSkipped,
    RunStarted,
    StepJobRequested,
)
from support.builders.pipelines import TEAM, PipelineRun, job, pipeline

EVERY_MINUTE = {"often": {"schedule": "* * * * *", "catch_up": "all"}}
NEW_TEXT = {"new-text": {"snapshot": "*"}}


def one_step(**fields: Any) -> Any:
    return pipeline({"a": {"cache": False, "out": ["x"]}}, **fields)


def snapshot(number: int) -> SnapshotAnnounced:
    return SnapshotAnnounced(team=TEAM, snapshot=f"text@xxh3-{number:032x}")


def test_the_times_of_an_outage_are_decided_some_at_a_tick_the_earliest_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(triggers, "MOST_AT_ONCE", 7)
    world = PipelineRun()
    world.apply(one_step(triggers=EVERY_MINUTE, limits={"queued": 1000}))
    world.apply(one_step(name="other", triggers=EVERY_MINUTE, limits={"queued": 1000}))
    decided: list[datetime] = []
    events = world.tick(3600)
    while events:
        begun = [one for one in events if isinstance(one, RunStarted | RunQueued)]
        assert len(begun) <= 7
        decided += [one.cause.due_at for one in begun if one.cause.due_at is not None]
        events = world.tick()
    assert len(decided) == 2 * 60
    assert {*decided[:60]} <= {*sorted(decided)[:67]}, "none waits for all of another pipeline"


def test_a_tick_computes_no_time_of_a_schedule_again(monkeypatch: pytest.MonkeyPatch) -> None:
    asked_for: list[str] = []
    real = triggers.next_time

    def counted(schedule: str, zone: str, after: datetime) -> datetime | None:
        asked_for.append(schedule)
        return real(schedule, zone, after)

    monkeypatch.setattr(triggers, "next_time", counted)
    world = PipelineRun()
    world.apply(one_step(triggers={"rare": {"schedule": "7 7 29 2 *"}}))
    for _ in range(10):
        world.tick(1)
    assert len(asked_for) == 1


def test_steps_of_live_runs_of_a_team_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triggers, "LIVE_STEPS_OF_TEAM", 2)
    world = PipelineRun()
    for name in ("a", "b", "c"):
        world.apply(one_step(name=name, triggers=NEW_TEXT))
    events = world.feed(snapshot(1))
    assert sum(isinstance(one, RunStarted) for one in events) == 2
    (skipped,) = [one for one in events if isinstance(one, RunSkipped)]
    assert skipped.reason == "runs of team nlp have 2 steps, of 2 at a time"
    (refused,) = world.feed(RunRequested(team=TEAM, pipeline="c", user="ada"))
    assert isinstance(refused, PipelineRequestRefused)
    assert refused.reason == skipped.reason
    world.finish()
    events = world.feed(RunRequested(team=TEAM, pipeline="c", user="ada"))
    assert isinstance(events[0], RunStarted)


def test_news_that_started_runs_or_skipped_them_are_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(evolve, "MOST_CAUSES", 3)
    world = PipelineRun()
    world.apply(one_step(triggers=NEW_TEXT, overlap="skip"))
    for number in range(5):
        world.feed(snapshot(number))
    assert len(world.state.causes) == 3
    assert world.take(world.received(snapshot(4))) == []
    world.take_over()


def test_triggers_of_a_team_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "TRIGGERS_OF_TEAM", 2)
    world = PipelineRun()
    two = {**EVERY_MINUTE, **NEW_TEXT}
    world.apply(one_step(triggers=two))
    assert "p" in {one.name for one in world.state.pipelines.values()}
    world.apply(one_step(triggers=two))
    (refused,) = world.apply(one_step(name="q", triggers=NEW_TEXT))
    assert isinstance(refused, PipelineRequestRefused)
    assert refused.reason.startswith("triggers: the other pipelines of team nlp have 2")
    world.apply(one_step(name="q", team="vision", triggers=NEW_TEXT))
    assert "vision/q" in world.state.pipelines


@pytest.mark.parametrize("name", ["a\x01b", "\u202e", "\N{GRINNING FACE}" * 300])
def test_a_request_may_have_any_id(name: str) -> None:
    world = PipelineRun()
    world.apply(one_step())
    asked_for = RunRequested(team=TEAM, pipeline="p", user="ada")
    envelope = Envelope(name, "/a\nb", world.now, "p", asked_for)
    events = world.take(Received(envelope, Topic.AUTOMATION, 0, 99))
    assert isinstance(events[0], RunStarted)
    assert world.take(Received(envelope, Topic.AUTOMATION, 0, 100)) == []


def test_files_of_a_team_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    size = len(one_step().encode())
    monkeypatch.setattr(requests, "MOST_BYTES", size)
    monkeypatch.setattr(requests, "BYTES_OF_TEAM", 2 * size)
    world = PipelineRun()
    (refused,) = world.apply(one_step(description="x"))
    assert isinstance(refused, PipelineRequestRefused)
    assert refused.reason.startswith(f"the file has {size + 1:,} bytes with all defaults")
    for name in ("p", "q", "q"):
        world.apply(one_step(name=name))
    (refused,) = world.apply(one_step(name="r"))
    assert isinstance(refused, PipelineRequestRefused)
    assert refused.reason.startswith("the files of team nlp would have")


def test_earlier_files_that_runs_began_with_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evolve, "EARLIER_BYTES", 2 * len(one_step(description="n").encode()))
    world = PipelineRun()
    for number in range(8):
        world.apply(one_step(description=str(number)))
        world.begin()
        world.finish()
        world.tick(1)
        state = world.state
        earlier = state.specs.keys() - {f"{TEAM}/p@{number + 1}"}
        assert len(earlier) <= 2
        assert state.earlier_bytes == sum(state.sizes[key] for key in earlier)
    world.feed(PipelineRemoveRequested(team=TEAM, pipeline="p", user="ada"))
    assert world.state.earlier_bytes == sum(world.state.sizes.values())
    world.take_over()


def test_files_of_live_runs_count_for_their_team_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    size = len(one_step(description="1").encode())
    monkeypatch.setattr(requests, "BYTES_OF_TEAM", size + 10)
    world = PipelineRun()
    for _ in range(2):
        world.apply(one_step(description="1"))
        if not world.state.live:
            world.begin()
    assert world.state.pipelines[f"{TEAM}/p"].revision == 1
    (refused,) = world.apply(one_step(description="2"))
    assert isinstance(refused, PipelineRequestRefused)
    assert "with those of runs that have not ended" in refused.reason
    world.apply(one_step(team="vision", description="2"))
    assert "vision/p" in world.state.pipelines
    world.finish()
    world.apply(one_step(description="2"))
    assert world.state.pipelines[f"{TEAM}/p"].revision == 2


def test_earlier_files_of_a_team_push_out_no_runs_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = PipelineRun()
    for number in range(3):
        world.apply(one_step(team="vision", description=str(number)))
        world.feed(RunRequested(team="vision", pipeline="p", user="ada"))
        world.finish()
    monkeypatch.setattr(evolve, "EARLIER_BYTES", 1)
    for number in range(3):
        world.apply(one_step(description=str(number)))
        world.begin()
        world.finish()
        world.tick(1)
    teams = [run.team for run in world.state.runs.values()]
    assert sorted(teams) == [TEAM, "vision", "vision", "vision"]


def test_the_steps_of_many_runs_that_begin_at_once_wait_for_the_next_tick(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(triggers, "MOST_DECISIONS", 5)
    world = PipelineRun()
    for name in ("a", "b", "c"):
        world.apply(one_step(name=name, triggers=NEW_TEXT))
    world.feed(snapshot(1))
    assert len(world.events(RunStarted)) == 3
    assert world.requested < 3
    world.tick()
    assert world.requested == 3
    world.finish()
    assert len(world.events(RunEnded)) == 3


class NotScanned(dict[str, Run]):
    """The runs, which must not be passed over one by one."""

    def values(self) -> ValuesView[Run]:
        raise AssertionError("all runs were looked at")

    def items(self) -> ItemsView[str, Run]:
        raise AssertionError("all runs were looked at")


def test_a_run_of_an_earlier_revision_is_forgotten_without_a_look_at_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(evolve, "MOST_STEPS", 1)
    world = PipelineRun()
    for revision in range(1, 4):
        world.apply(one_step(description=f"revision {revision}"))
        run_id = world.begin()
        if revision == 3:
            break
        world.finish()
    assert [*world.state.specs] == [f"{TEAM}/p@{number}" for number in (1, 2, 3)]
    ended = RunEnded(run_id=run_id, result="succeeded", reason="", failed_in_row=0)
    world.state.runs = NotScanned(world.state.runs)
    evolve.fold(world.state, ended, world.now.replace(hour=9))
    assert [*world.state.specs] == [f"{TEAM}/p@3"]
    assert len(world.state.runs) == 1


def test_items_of_a_fan_out_look_at_their_common_needs_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks: list[str] = []
    real = stepping._states

    def counted(plan: Any, run_id: str, instance: Instance) -> Any:
        looks.append(instance.name)
        return real(plan, run_id, instance)

    monkeypatch.setattr(stepping, "_states", counted)
    items = [*range(20)]
    world = PipelineRun()
    world.apply(
        pipeline(
            {
                "first": {"job": job("x", "${{ item }}"), "each": items},
                "second": {"job": job("y", "${{ item }}"), "each": items, "after": ["first"]},
            }
        )
    )
    world.begin()
    looks.clear()
    world.succeed(next(iter(world.jobs)))
    assert looks == ["second-0"]
    *others, last = world.jobs
    world.succeed(*others)
    looks.clear()
    world.succeed(last)
    assert looks == ["second-0"], "and all of them are decided"
    world.finish()
    assert len(world.events(StepJobRequested)) == 40
