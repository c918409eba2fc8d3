"""A pipeline of 1,000 steps: decided, run again without changes, and with one change.

The store is a folder, and each step leaves one file. Kafka and agents are left out: the figures are
those of the decisions, in CPU time of the thread.

- `pipeline_first_s`: all decisions of the first run. `pipeline_cached_s`: those of a run that has
  every step from the cache. `pipeline_changed_s`: those of a run with one changed step.
- `pipeline_changed_jobs`: the jobs of that run, which are exactly the changed step and those that
  depend on it.
- `pipeline_decision_ms`: the longest decision.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

from harness import Context, Result

from gangline_bus.codec import Received
from gangline_bus.decision import EffectDone, Input
from gangline_pipelines.core.decide import PipelineDecider
from gangline_pipelines.service.executor import OutputChecker
from gangline_schemas.artifacts import JobArtifacts
from gangline_schemas.base import Event
from gangline_schemas.catalog import topic_of
from gangline_schemas.envelope import Envelope
from gangline_schemas.events.pipeline_requests import PipelineConfigureRequested, RunRequested
from gangline_schemas.events.pipelines import RunStarted, StepJobRequested
from gangline_schemas.events.workers import StepOutputWritten
from gangline_schemas.job import JobState
from gangline_schemas.pipeline_file import PipelineSpec
from gangline_storage import LocalStore
from gangline_worker.agent.workspace.artifacts import ArtifactStore
from support.builders.pipelines import TEAM, changed, job, pipeline, released
from support.harnesses.decider_run import START

WIDTH = 10


def layers(count: int, changed_step: str = "") -> PipelineSpec:
    """Layers of 10 steps; each step reads two of the layer before."""
    steps: dict[str, dict[str, Any]] = {}
    for number in range(count):
        layer, place = divmod(number, WIDTH)
        before = [f"s{(layer - 1) * WIDTH + (place + other) % WIDTH}" for other in (0, 1)]
        name = f"s{number}"
        command = f"{name} changed" if name == changed_step else name
        inputs = {f"i{at}": f"{one}.x" for at, one in enumerate(before)} if layer else {}
        steps[name] = {"job": job(command), "in": inputs, "out": ["x"]}
    return pipeline(steps, limits={"parallel": 100})


def downstream(spec: PipelineSpec, changed_step: str) -> set[str]:
    """A step, and all that read what it leaves, directly or by others."""
    found = {changed_step}
    for name, step in spec.steps.items():  # those of earlier layers stand before
        if any(source.removesuffix(".x") in found for source in map(str, step.inputs.values())):
            found.add(name)
    return found


class World:
    """A decider without checks, and a store with real outputs."""

    def __init__(self, folder: Path) -> None:
        self.decider = PipelineDecider()
        self.state, self.soft = self.decider.initial(), self.decider.initial_soft()
        self.folder = folder
        self.artifacts = ArtifactStore(LocalStore(folder / "store"), TEAM)
        self.checker = OutputChecker(self.artifacts.store, read_bytes=1 << 30)
        self.jobs: list[StepJobRequested] = []
        self.requested: set[str] = set()
        self.count = 0
        self.spent_s = self.longest_s = 0.0

    def feed(self, event: Event) -> list[Event]:
        self.count += 1
        envelope = Envelope(f"id-{self.count}", "/bench", START, "subject", event)
        return self.decide(Received(envelope, topic_of(event.type).value, 0, self.count))

    def decide(self, item: Input) -> list[Event]:
        began = time.thread_time()
        decisions = list(self.decider.decide(self.state, self.soft, item, START))
        for decision in decisions:
            self.state = self.decider.evolve(self.state, decision, START)
        took = time.thread_time() - began
        self.spent_s += took
        self.longest_s = max(self.longest_s, took)
        events = [decision.event for decision in decisions]
        found = [event for event in events if isinstance(event, StepJobRequested)]
        self.jobs += found
        self.requested |= {event.step for event in found}
        return events

    def run(self, spec: PipelineSpec) -> tuple[float, set[str]]:
        """Run a pipeline to its end: seconds of decisions, and steps that got jobs."""
        self.feed(PipelineConfigureRequested(spec=spec, user="ada"))
        self.spent_s, self.requested = 0.0, set()
        events = self.feed(RunRequested(team=TEAM, pipeline="p"))
        run = next(event.run_id for event in events if isinstance(event, RunStarted))
        while not self.state.runs[run].state.ended:
            effects = self.decider.effects(self.state, self.soft)
            for key, effect in effects.items():
                self.decide(EffectDone(key, self.checker(key, effect)))
            while self.jobs:
                self.end(self.jobs.pop())
        return self.spent_s, self.requested

    def end(self, requested: StepJobRequested) -> None:
        """A job leaves one file that says what it read."""
        artifacts = requested.spec.artifacts or JobArtifacts()
        out = self.folder / "out" / "x"
        out.mkdir(parents=True, exist_ok=True)
        text = f"{requested.spec.command} {sorted(artifacts.inputs.items())}"
        (out / "file").write_text(text)
        made = self.artifacts.put(artifacts, out.parent, None)["x"]
        self.feed(
            StepOutputWritten(
                job_id=requested.job_id, attempt=1, node_id="n", name="x", artifact=made
            )
        )
        self.feed(changed(requested.job_id, JobState.SUCCEEDED))
        self.feed(released(requested.job_id))


def run(context: Context) -> list[Result]:
    """The three runs; with --quick of 200 steps."""
    steps = 200 if context.quick else 1000
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder))
        first_s, all_jobs = world.run(layers(steps))
        cached_s, no_jobs = world.run(layers(steps))
        changed_step = f"s{steps * 9 // 10}"
        changed_s, some_jobs = world.run(layers(steps, changed_step))
    assert (len(all_jobs), no_jobs) == (steps, set())
    assert some_jobs == downstream(layers(steps), changed_step)
    return [
        context.result("pipeline_first_s", first_s, "s"),
        context.result("pipeline_cached_s", cached_s, "s"),
        context.result("pipeline_changed_s", changed_s, "s"),
        context.result("pipeline_changed_jobs", len(some_jobs), "jobs"),
        context.result("pipeline_decision_ms", world.longest_s * 1000, "ms"),
    ]
