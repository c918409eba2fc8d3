"""Random graphs, with crashes after each event, and inputs that are repeated, late and mixed up.

The promises at the end: every run has ended, in one of its ends; no job was requested twice; no
job of an ended run lives; a second run without changes requests no job.
"""

from __future__ import annotations

import os
import random
from typing import Any

import pytest

from gangline_pipelines.core.model import Checked, StoreAway
from gangline_schemas.base import Event
from gangline_schemas.events.faults import FailureCause
from gangline_schemas.events.pipeline_requests import (
    PipelinePauseRequested,
    RunCancelRequested,
    RunRequested,
    RunRetryRequested,
    SnapshotAnnounced,
)
from gangline_schemas.events.pipelines import RunEnded, RunStarted
from gangline_schemas.job import JobState
from gangline_schemas.pipeline_file import PipelineSpec
from support.builders.pipelines import TEAM, PipelineRun, changed, failure, pipeline, released

SEEDS = int(os.environ.get("GANGLINE_PIPELINE_SEEDS", "12"))
ROUNDS = 120


def random_pipeline(draw: random.Random) -> PipelineSpec:
    """Steps that read some of those before them."""
    steps: dict[str, dict[str, Any]] = {}
    for number in range(draw.randint(1, 9)):
        step: dict[str, Any] = {"out": {"x": "folder", "score": "score"}}
        before = draw.sample([*steps], min(len(steps), draw.randint(0, 2)))
        step["in"] = {
            f"i{place}": f"{name}.x" + draw.choice(["", "", " or none"])
            for place, name in enumerate(before)
        }
        if before and draw.random() < 0.2:
            step["when"] = f"{before[0]}.score > {draw.choice(['0.5', '0.95'])}"
        if draw.random() < 0.2:
            step["each"] = [1, 2]
        if draw.random() < 0.3:
            step["retry"] = {"max": 1, "on": draw.choice([[], ["node"]])}
        step["cache"] = draw.random() < 0.9
        steps[f"s{number}"] = step
    return pipeline(
        steps,
        overlap=draw.choice(["queue", "skip", "cancel"]),
        siblings=draw.choice(["cancel", "finish"]),
        triggers={"new": {"snapshot": "web"}, "often": {"schedule": "*/7 * * * *"}},
        pause_after_failures=draw.choice([0, 2]),
        limits={"parallel": draw.randint(1, 4), "queued": 3},
    )


class Storm:
    """Inputs in any order, each perhaps twice, and a takeover at any time."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.world = PipelineRun()
        self.late: list[Event] = []
        self.sent: list[Any] = []
        self.snapshots = 0

    def feed(self, event: Event) -> None:
        """Send it, and perhaps an old input again, and perhaps crash."""
        received = self.world.received(event)
        self.sent.append(received)
        self.world.take(received)
        if self.draw.random() < 0.3:
            self.world.take(self.draw.choice(self.sent))
        if self.draw.random() < 0.2:
            self.world.take_over()

    def act(self) -> None:
        """One thing that happens."""
        draw, world = self.draw, self.world
        runs = [*world.state.runs]
        match draw.randrange(12):
            case 0:
                self.feed(RunRequested(team=TEAM, pipeline="p", user="ada"))
            case 1:
                self.snapshots += draw.random() < 0.7
                name = f"web@xxh3-{self.snapshots:032x}"
                self.feed(SnapshotAnnounced(team=TEAM, snapshot=name))
            case 2:
                world.tick(draw.choice([1, 30, 400]))
            case 3 if runs:
                self.feed(RunRetryRequested(team=TEAM, run_id=draw.choice(runs), user="ada"))
            case 4 if runs and draw.random() < 0.3:
                self.feed(RunCancelRequested(team=TEAM, run_id=draw.choice(runs), user="ada"))
            case 5:
                paused = draw.random() < 0.3
                self.feed(PipelinePauseRequested(team=TEAM, pipeline="p", paused=paused))
            case 6 if self.late:
                draw.shuffle(self.late)
                self.feed(self.late.pop())
            case 7 | 8:
                self.check()
            case _:
                self.end_a_job()

    def check(self) -> None:
        """An effect ends, well or not."""
        for key, effect in [*self.world.effects().items()][:1]:
            if self.draw.random() < 0.2:
                self.world.done(key, StoreAway("away"))
                return
            digests: tuple[str, ...] = effect.digests  # type: ignore[attr-defined]
            gone = tuple(one for one in digests if self.draw.random() < 0.05)
            self.world.done(key, Checked(gone))
            self.world.done(key, Checked(()))

    def end_a_job(self) -> None:
        """A job ends; what it left is reported before, after, and perhaps late."""
        if not self.world.jobs:
            return
        job_id = self.draw.choice([*self.world.jobs])
        requested = self.world.jobs.pop(job_id)
        stopped = job_id in self.world.asked_to_stop
        if stopped and self.draw.random() < 0.7:
            for event in (changed(job_id, JobState.CANCELLED), released(job_id)):
                self.feed(event)
        elif self.draw.random() < 0.25:
            cause = self.draw.choice([FailureCause.NODE, FailureCause.USER_ERROR])
            ended = changed(job_id, JobState.FAILED, "broke")
            news = [failure(job_id, cause), ended, released(job_id)]
            self.draw.shuffle(news)
            for event in news:
                self.feed(event)
        else:
            ended = changed(job_id, JobState.SUCCEEDED)
            news = [*self.world.outputs_of(requested), ended, released(job_id)]
            self.draw.shuffle(news)
            if self.draw.random() < 0.3:
                self.late.append(news.pop())
            for event in news:
                self.feed(event)

    def settle(self) -> None:
        """Let all that is on its way come, and all that waits end."""
        world = self.world
        while self.late:
            self.feed(self.late.pop())
        for _ in range(200):
            world.finish()
            world.tick(1300)
            if not world.state.live and not world.jobs:
                return
        raise AssertionError(f"these runs do not end: {[*world.state.live]}")


@pytest.mark.parametrize("seed", range(SEEDS))
def test_every_run_ends_once_whatever_comes_in_whatever_order(seed: int) -> None:
    storm = Storm(seed)
    world = storm.world
    spec = random_pipeline(storm.draw)
    world.apply(spec)
    for _ in range(ROUNDS):
        storm.act()
    world.feed(PipelinePauseRequested(team=TEAM, pipeline="p", paused=True, user="ada"))
    storm.settle()
    world.take_over()

    begun = [event.run_id for event in world.events(RunStarted)]  # type: ignore[attr-defined]
    assert len(begun) == len(set(begun)), "a run started twice"
    assert {str(run.state) for run in world.state.runs.values()} <= {
        "succeeded", "failed", "cancelled",
    }  # fmt: skip
    assert not world.state.jobs
    assert not world.state.waiting
    retried = sum(run.retries for run in world.state.runs.values())
    assert len(world.events(RunEnded)) == len(begun) + retried

    world.begin()
    world.finish()
    before = world.requested
    last = world.begin()
    world.finish()
    fresh = [name for name, step in spec.steps.items() if not step.cache]
    states = world.states(last)
    ran = {name for name, state in states.items() if state == "succeeded"}
    assert all(any(name.startswith(step) for step in fresh) for name in ran)
    assert world.requested - before == len(ran)
