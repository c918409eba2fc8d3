"""Triggers: each cause starts one run; schedules over outages and changes of the clock."""

from __future__ import annotations

import os
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from gangline_pipelines.core import evolve, triggers
from gangline_pipelines.core.model import StoreAway
from gangline_schemas.events.model_requests import SnapshotProfiled
from gangline_schemas.events.pipeline_requests import (
    PipelinePauseRequested,
    PipelineRemoveRequested,
    RunCancelRequested,
    RunRequested,
    RunRetryRequested,
    SnapshotAnnounced,
)
from gangline_schemas.events.pipelines import (
    PipelinePaused,
    PipelineRequestRefused,
    RunEnded,
    RunQueued,
    RunSkipped,
    RunStarted,
    TimesMissed,
)
from gangline_schemas.events.registry import DriftFound
from gangline_schemas.job import JobState
from gangline_schemas.pipeline_file import Trigger
from support.builders.pipelines import TEAM, PipelineRun, job, pipeline

REPEATS = int(os.environ.get("GANGLINE_REPEATS", "1000"))
"""10,000 by `make soak`."""
NEW_TEXT = {"new-text": {"snapshot": "web-*"}}


def one_step(**fields: Any) -> Any:
    return pipeline({"a": {"cache": False, "out": ["x"]}}, **fields)


def snapshot(number: int, corpus: str = "web-1", team: str = TEAM) -> SnapshotAnnounced:
    return SnapshotAnnounced(team=team, snapshot=f"{corpus}@xxh3-{number:032x}")


def started(world: PipelineRun) -> list[RunStarted]:
    return [event for event in world.events(RunStarted) if isinstance(event, RunStarted)]


def test_the_same_snapshot_starts_one_run_however_often_it_is_announced() -> None:
    world = PipelineRun()
    world.apply(one_step(triggers=NEW_TEXT))
    world.feed(snapshot(1))
    for number in range(REPEATS):
        if number % 100 == 0:
            world.finish()
        assert world.take(world.received(snapshot(1))) == []
    assert len(started(world)) == 1
    world.feed(snapshot(2))
    world.finish()
    assert len(started(world)) == 2
    assert world.feed(snapshot(1)) == [], "late news is known too"
    assert [event.cause.subject[-1] for event in started(world)] == ["1", "2"]


def test_news_of_many_snapshots_that_come_late_and_repeated_start_one_run_each() -> None:
    draw = random.Random(27)
    count = REPEATS // 20
    news = [*range(count), *draw.choices(range(count), k=REPEATS - count)]
    draw.shuffle(news)
    world = PipelineRun()
    world.apply(one_step(triggers=NEW_TEXT, limits={"queued": 100, "runs_per_day": 10_000}))
    sent: list[Any] = []
    for place, number in enumerate(news):
        sent.append(world.received(snapshot(number)))
        world.take(sent[-1])
        if place % 3 == 0:
            world.take(draw.choice(sent))  # the bus delivers it again
        if place % 7 == 0:
            world.finish()
        if place % (REPEATS // 10) == 0:
            world.take_over()
    world.finish()
    begun = [int(event.cause.subject[-32:], 16) for event in started(world)]
    assert sorted(begun) == [*range(count)]
    assert not world.events(RunSkipped)


@pytest.mark.parametrize(
    ("news", "runs"),
    [
        (snapshot(1), 1),
        (snapshot(1, "web-2026.b"), 1),
        (snapshot(1, "books"), 0),
        (snapshot(1, team="vision"), 0),
    ],
)
def test_a_trigger_takes_snapshots_of_its_corpus_and_team(
    news: SnapshotAnnounced, runs: int
) -> None:
    world = PipelineRun()
    world.apply(one_step(triggers=NEW_TEXT))
    world.feed(news)
    assert len(started(world)) == runs


@pytest.mark.parametrize(
    ("overlap", "kinds"),
    [
        ("queue", [RunQueued]),
        ("skip", [RunSkipped]),
    ],
)
def test_a_run_that_is_due_while_another_runs(overlap: str, kinds: list[type]) -> None:
    world = PipelineRun()
    world.apply(one_step(triggers=NEW_TEXT, overlap=overlap))
    world.feed(snapshot(1))
    assert [type(event) for event in world.feed(snapshot(2))] == kinds
    world.finish()
    assert len(started(world)) == (2 if overlap == "queue" else 1)
    assert world.feed(snapshot(2)) == []


def test_with_cancel_the_newest_run_takes_the_place_of_the_others() -> None:
    world = PipelineRun()
    world.apply(one_step(triggers=NEW_TEXT, overlap="cancel"))
    world.feed(snapshot(1))
    first = world.jobs.popitem()[0]
    world.feed(snapshot(2))
    world.feed(snapshot(3))
    assert world.asked_to_stop == [first]
    world.end(first, JobState.CANCELLED)
    world.finish()
    assert [event.cause.subject[-1] for event in started(world)] == ["1", "3"]
    results = [event.result for event in world.events(RunEnded)]  # type: ignore[attr-defined]
    assert results == ["cancelled", "succeeded"]


def test_a_run_that_is_queued_is_cancelled_and_its_cause_counts_as_seen() -> None:
    world = PipelineRun()
    world.apply(one_step(triggers=NEW_TEXT))
    world.feed(snapshot(1))
    (queued,) = world.feed(snapshot(2))
    assert isinstance(queued, RunQueued)
    for team, kind in (("vision", RunCancelRequested), (TEAM, RunRetryRequested)):
        (refused,) = world.feed(kind(team=team, run_id=queued.run_id, user="eve"))
        assert isinstance(refused, PipelineRequestRefused)
    (skipped,) = world.feed(RunCancelRequested(team=TEAM, run_id=queued.run_id, user="ada"))
    assert isinstance(skipped, RunSkipped)
    assert (skipped.reason, skipped.user) == ("cancelled by ada", "ada")
    assert "" in world.state.requests.values(), "the request is answered, and not refused"
    world.take_over()
    world.finish()
    assert len(started(world)) == 1
    assert world.feed(snapshot(2)) == []


def test_with_cancel_a_request_takes_the_place_of_the_others_too() -> None:
    world = PipelineRun()
    world.apply(one_step(triggers=NEW_TEXT, overlap="cancel", limits={"queued": 0}))
    first = world.begin()
    (job_id,) = world.jobs
    world.feed(snapshot(2))
    world.feed(RunRequested(team=TEAM, pipeline="p", user="ada"))
    world.jobs.clear()
    world.end(job_id, JobState.CANCELLED)
    world.finish()
    assert world.run(first).state == "cancelled"
    assert [event.cause.kind for event in started(world)] == ["manual", "manual"]
    world.take_over()


def test_times_and_requests_leave_nothing_behind_that_grows() -> None:
    world = PipelineRun()
    world.apply(one_step(triggers={**NEW_TEXT, "often": {"schedule": "* * * * *"}}))
    world.feed(snapshot(1))
    world.finish()
    before = len(world.state.causes)
    for _ in range(3):
        world.tick(60)
        world.finish()
        world.begin()
        world.finish()
    assert len(started(world)) == 7
    assert len(world.state.causes) == before == 1


def test_the_oldest_runs_are_forgotten_if_ended_runs_have_too_many_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(evolve, "MOST_STEPS", 2)
    world = PipelineRun()
    world.apply(one_step())
    runs = []
    for _ in range(4):
        runs.append(world.begin())
        world.finish()
        world.tick(1)
    assert [*world.state.runs] == runs[2:]
    assert len(world.state.steps) == 2
    world.take_over()


def test_so_many_runs_wait_and_so_many_begin_in_a_day() -> None:
    world = PipelineRun()
    world.apply(one_step(triggers=NEW_TEXT, limits={"queued": 2, "runs_per_day": 4}))
    for number in range(5):
        world.feed(snapshot(number))
    assert len(world.events(RunSkipped)) == 2
    world.finish()
    assert len(started(world)) == 3
    for number in range(10, 13):
        world.feed(snapshot(number))
        world.finish()
    assert len(started(world)) == 4
    world.tick(86_401)
    world.feed(snapshot(20))
    assert len(started(world)) == 5


def test_a_cooldown_skips_triggers_and_no_requests() -> None:
    world = PipelineRun()
    world.apply(one_step(triggers=NEW_TEXT, cooldown_minutes=10))
    world.feed(snapshot(1))
    world.finish()
    (skipped,) = world.feed(snapshot(2))
    assert isinstance(skipped, RunSkipped)
    assert "cooldown" in skipped.reason
    world.begin()
    world.finish()
    world.tick(601)
    world.feed(snapshot(3))
    assert len(started(world)) == 3


def test_a_pipeline_that_keeps_failing_is_paused_until_a_person_resumes_it() -> None:
    world = PipelineRun()
    world.apply(one_step(triggers=NEW_TEXT, pause_after_failures=2))
    for number in range(3):
        world.feed(snapshot(number))
        for job_id in [*world.jobs]:
            world.fail(job_id)
    assert len(started(world)) == 2
    (paused,) = world.events(PipelinePaused)
    assert "2 triggered runs failed in a row" in paused.reason  # type: ignore[attr-defined]
    world.begin()
    world.finish()
    world.feed(PipelinePauseRequested(team=TEAM, pipeline="p", paused=False, user="ada"))
    assert world.feed(snapshot(2)) == [], "a cause that was skipped counts as seen"
    world.feed(snapshot(3))
    assert len(started(world)) == 4
    world.take_over()


@pytest.mark.parametrize("overlap", ["queue", "skip", "cancel"])
def test_a_run_of_a_removed_pipeline_counts_when_it_is_applied_again(overlap: str) -> None:
    world = PipelineRun()
    world.apply(pipeline({"a": {}}, overlap=overlap))
    first = world.begin()
    world.feed(PipelineRemoveRequested(team=TEAM, pipeline="p", user="ada"))
    world.apply(pipeline({"a": {}}, overlap=overlap))
    world.feed(RunRequested(team=TEAM, pipeline="p", user="ada"))
    assert [*world.state.live] == [first]
    assert len(world.state.queued) == (overlap != "skip")
    assert world.run(first).state == ("stopping" if overlap == "cancel" else "running")
    (job_id,) = world.jobs
    if overlap == "cancel":
        world.jobs.clear()
        world.end(job_id, JobState.CANCELLED)
    else:
        world.succeed()
    assert not world.state.queued
    assert len(world.state.live) == (overlap != "skip")
    world.take_over()


def test_a_removed_pipeline_starts_nothing_and_its_run_continues() -> None:
    world = PipelineRun()
    world.apply(one_step(triggers=NEW_TEXT))
    world.feed(snapshot(1))
    world.feed(snapshot(2))
    world.feed(PipelineRemoveRequested(team=TEAM, pipeline="p", user="ada"))
    world.finish()
    assert len(started(world)) == 1
    assert world.run(started(world)[0].run_id).state == "succeeded"
    world.apply(one_step())
    world.begin()
    world.finish()
    world.take_over()


def test_a_changed_file_holds_for_the_next_run() -> None:
    world = PipelineRun()
    world.apply(one_step())
    run = world.begin()
    world.apply(pipeline({"b": {"out": ["x"]}}))
    world.finish()
    assert world.states(run) == {"a": "succeeded"}
    assert [*world.states(world.begin())] == ["b"]


@pytest.mark.parametrize(
    ("catch_up", "due"),
    [("last", ["09:55"]), ("all", ["08:05", "08:15", "09:55"]), ("none", [])],
)
def test_times_that_passed_during_an_outage(catch_up: str, due: list[str]) -> None:
    trigger = {"often": {"schedule": "5,15,55 * * * *", "catch_up": catch_up}}
    world = PipelineRun()
    world.apply(one_step(triggers=trigger, limits={"queued": 100}))
    world.now += timedelta(hours=2, minutes=1)  # 10:01, and no Tick since 08:00
    world.take_over()
    world.tick()
    world.finish()
    times = [f"{event.cause.due_at:%H:%M}" for event in started(world)]
    missed = [event.count for event in world.events(TimesMissed)]  # type: ignore[attr-defined]
    if catch_up == "all":
        assert [times[0], times[1], times[-1]] == due
        assert (len(times), missed) == (6, [])
    else:
        assert times == due
        assert missed == [6 - len(due)]
    assert world.tick() == []
    world.tick(4 * 60)
    world.finish()
    assert started(world)[-1].cause.due_at == datetime(2026, 11, 21, 10, 5, tzinfo=UTC)


@pytest.mark.parametrize(
    ("schedule", "away_from", "due"),
    [
        ("30 2 * * *", datetime(2026, 3, 29, 0, 5, tzinfo=UTC), ["01:00"]),
        ("*/30 * * * *", datetime(2026, 3, 29, 0, 5, tzinfo=UTC),
         ["00:30", "01:00", "01:30", "02:00"]),
        ("30 2 * * *", datetime(2026, 10, 24, 23, 50, tzinfo=UTC), ["00:30"]),
        ("30 2 * * *", datetime(2026, 10, 25, 0, 40, tzinfo=UTC), []),
        ("*/30 * * * *", datetime(2026, 10, 25, 0, 5, tzinfo=UTC),
         ["00:30", "01:00", "01:30", "02:00"]),
    ],
)  # fmt: skip
def test_an_outage_of_two_hours_over_a_change_of_the_clock_misses_no_time(
    schedule: str, away_from: datetime, due: list[str]
) -> None:
    """Clocks of Berlin leave out, or repeat, the hour from 2:00 at 1:00 UTC of that day."""
    world = PipelineRun()
    world.now = away_from - timedelta(minutes=1)
    trigger = {"schedule": schedule, "zone": "Europe/Berlin", "catch_up": "all"}
    world.apply(one_step(triggers={"often": trigger}, limits={"queued": 100}))
    world.tick()
    world.now = away_from + timedelta(hours=2)
    world.take_over()
    world.tick()
    world.finish()
    assert [f"{event.cause.due_at:%H:%M}" for event in started(world)] == due
    assert not world.events(TimesMissed)


@pytest.mark.parametrize(
    ("schedule", "day", "times"),
    [
        ("30 2 * * *", datetime(2026, 3, 28, tzinfo=UTC), ["01:30", "01:00", "00:30"]),
        ("30 2 * * *", datetime(2026, 10, 24, tzinfo=UTC), ["00:30", "00:30", "01:30"]),
        ("0 12 * * *", datetime(2026, 3, 28, tzinfo=UTC), ["11:00", "10:00", "10:00"]),
    ],
)
def test_a_schedule_in_a_zone_over_a_change_of_the_clock(
    schedule: str, day: datetime, times: list[str]
) -> None:
    world = PipelineRun()
    world.now = day
    trigger = {"nightly": {"schedule": schedule, "zone": "Europe/Berlin"}}
    world.apply(one_step(triggers=trigger))
    for _ in range(3 * 24 * 6):
        world.tick(600)
        world.finish()
    found = [f"{event.cause.due_at:%H:%M}" for event in started(world)]
    assert found == times


def test_a_schedule_that_is_paused_starts_nothing_afterwards() -> None:
    world = PipelineRun()
    world.apply(one_step(triggers={"often": {"schedule": "* * * * *"}}))
    world.feed(PipelinePauseRequested(team=TEAM, pipeline="p", user="ada"))
    for _ in range(5):
        assert world.tick(60) == []
    world.feed(PipelinePauseRequested(team=TEAM, pipeline="p", paused=False, user="ada"))
    assert world.tick() == []
    world.tick(60)
    assert len(started(world)) == 1


def test_a_request_that_comes_twice_is_one_run() -> None:
    world = PipelineRun()
    world.apply(one_step())
    received = world.received(RunRequested(team=TEAM, pipeline="p", user="ada"))
    world.take(received)
    assert world.take(received) == []
    world.finish()
    assert world.take(received) == []
    assert len(started(world)) == 1


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (RunRequested(team=TEAM, pipeline="q"), "has no pipeline q"),
        (RunRequested(team="vision", pipeline="p"), "team vision has no pipeline p"),
        (RunRequested(team=TEAM, pipeline="p", params={"x": 1}), "params.x"),
        (PipelinePauseRequested(team=TEAM, pipeline="q"), "has no pipeline q"),
        (PipelineRemoveRequested(team="vision", pipeline="p"), "has no pipeline p"),
    ],
)
def test_requests_that_cannot_be_done_are_refused_with_the_reason(
    request_: Any, words: str
) -> None:
    world = PipelineRun()
    world.apply(one_step())
    (refused,) = world.feed(request_)
    assert isinstance(refused, PipelineRequestRefused)
    assert words in refused.reason


def drift(version: int, snapshot: str = "web@xxh3-" + "7" * 32, model: str = "lm") -> DriftFound:
    example = Path(__file__).parents[3] / "schemas" / "examples" / "drift.found.json"
    found = DriftFound.model_validate_json(example.read_text())
    return found.model_copy(update={"version": version, "snapshot": snapshot, "model": model})


def test_drift_of_a_model_starts_one_run_for_each_version_and_snapshot() -> None:
    world = PipelineRun()
    steps = {"a": {"job": job("a", "${{ trigger.snapshot }}"), "out": ["x"]}}
    world.apply(pipeline(steps, triggers={"drifted": {"drift": "lm"}}))
    world.feed(drift(1))
    (requested,) = world.jobs.values()
    assert requested.spec.command[1] == "web@xxh3-" + "7" * 32
    for found in (drift(1), drift(1, model="other"), drift(2), drift(2)):
        world.finish()
        world.feed(found)
    world.finish()
    assert [event.cause.kind for event in started(world)] == ["drift", "drift"]


def test_a_profile_of_a_snapshot_is_news_of_it_too() -> None:
    world = PipelineRun()
    world.apply(one_step(triggers=NEW_TEXT))
    example = Path(__file__).parents[3] / "schemas" / "examples" / "snapshot.profiled.json"
    profiled = SnapshotProfiled.model_validate_json(example.read_text())
    profiled = profiled.model_copy(update={"team": TEAM, "snapshot": snapshot(1).snapshot})
    world.feed(profiled)
    world.finish()
    assert world.feed(snapshot(1)) == []
    assert len(started(world)) == 1


def test_a_schedule_that_is_applied_in_an_hour_that_comes_twice_waits_for_the_next_day() -> None:
    world = PipelineRun()
    world.now = datetime(2026, 10, 25, 1, 15, tzinfo=UTC)  # 2:15 in Berlin, for the second time
    nightly = {"nightly": {"schedule": "30 2 * * *", "zone": "Europe/Berlin"}}
    world.apply(one_step(triggers=nightly))
    for _ in range(3):
        assert world.tick(3600) == []
    world.tick(86_400)
    (run,) = started(world)
    assert run.cause.due_at == datetime(2026, 10, 26, 1, 30, tzinfo=UTC)


@pytest.mark.parametrize("minute", range(0, 60, 10))
def test_the_last_time_of_a_schedule_is_known_in_an_hour_that_comes_twice(minute: int) -> None:
    trigger = Trigger(schedule="*/20 * * * *", zone="Europe/Berlin")
    now = datetime(2026, 10, 25, 1, minute, 5, tzinfo=UTC)  # from 2:00 in Berlin, a second time
    last = now.replace(minute=minute - minute % 20, second=0)
    assert triggers.latest(trigger, now) == last


def put_back(world: PipelineRun, hours: float) -> None:
    """The clock was so far ahead, and is corrected."""
    world.now -= timedelta(hours=hours)
    world.tick()


def test_a_clock_that_was_ahead_and_is_put_back_holds_up_no_trigger() -> None:
    world = PipelineRun()
    world.apply(one_step(triggers=NEW_TEXT, limits={"runs_per_day": 2}))
    world.now += timedelta(days=300)
    for number in range(2):
        world.feed(snapshot(number))
        world.finish()
    put_back(world, 300 * 24)
    for number in range(2, 5):
        world.feed(snapshot(number))
        world.finish()
    assert [one.cause.subject[-1] for one in started(world)] == ["0", "1", "2", "3"]
    (skipped,) = world.events(RunSkipped)
    assert "limits.runs_per_day" in skipped.reason  # type: ignore[attr-defined]


@pytest.mark.parametrize("catch_up", ["last", "all", "none"])
def test_a_schedule_goes_on_after_a_clock_that_was_ahead_and_each_time_runs_once(
    catch_up: str,
) -> None:
    world = PipelineRun()
    hourly = {"schedule": "0 * * * *", "catch_up": catch_up}
    world.apply(one_step(triggers={"hourly": hourly}, limits={"queued": 100}))
    world.tick()
    world.tick(5 * 3600 + 60)
    world.finish()
    put_back(world, 5)
    for _ in range(8 * 60):
        world.tick(60)
        world.finish()
    due = [one.cause.due_at for one in started(world)]
    assert len({*due}) == len(due)
    last = world.now.replace(minute=0)
    assert {last - timedelta(hours=back) for back in range(8)} <= {*due}


def test_a_step_that_waits_for_its_next_try_does_not_wait_for_a_clock_that_was_ahead() -> None:
    world = PipelineRun()
    world.apply(pipeline({"a": {"out": ["x"], "retry": {"max": 1, "wait_minutes": 5}}}))
    world.now += timedelta(days=3)
    world.begin()
    (first,) = world.jobs
    world.end(first, JobState.FAILED)
    world.tick(30)
    assert world.requested == 1
    put_back(world, 3 * 24)
    assert world.requested == 2


def test_a_check_that_the_store_did_not_answer_does_not_wait_for_a_clock_that_was_ahead() -> None:
    world = PipelineRun()
    world.apply(pipeline({"a": {"out": ["x"]}}))
    world.begin()
    world.finish()
    world.now += timedelta(days=3)
    world.begin()
    ((key, _),) = world.effects().items()
    world.done(key, StoreAway("it is away"))
    world.tick()
    assert not world.effects()
    put_back(world, 3 * 24)
    assert len(world.effects()) == 1


def test_after_an_outage_a_tick_looks_at_so_many_times_and_the_next_one_continues(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else 500 schedules of each minute would hold a Tick for longer than the watchdog waits."""
    monkeypatch.setattr(triggers, "MOST_LOOKED_AT", 100)
    world = PipelineRun()
    minutely = {"each-minute": {"schedule": "* * * * *"}}
    for name in ("p", "q", "r"):
        world.apply(one_step(name=name, triggers=minutely))
    world.tick(3600 + 30)
    assert [one.pipeline for one in started(world)] == ["p", "q"]
    world.tick()
    assert [one.pipeline for one in started(world)] == ["p", "q", "r"]
    missed = [event.count for event in world.events(TimesMissed)]  # type: ignore[attr-defined]
    assert missed == [59, 59, 59]
