"""A pipeline of 1,000 steps: decided, run again without changes, and with one change.

`PYTHONPATH=tests .venv/bin/python tests/bench/bench_pipelines.py`. The store is a folder, and each
step leaves one file. Kafka and agents are left out: the figures are those of the decisions and of
the check of outputs.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

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
from support.builders.pipelines import TEAM, changed, job, pipeline
from support.harnesses.decider_run import START

STEPS = 1000
WIDTH = 10


def layers(changed_step: str = "") -> PipelineSpec:
    """100 layers of 10 steps; each reads two of the layer before."""
    steps: dict[str, dict[str, Any]] = {}
    for number in range(STEPS):
        layer, place = divmod(number, WIDTH)
        before = [f"s{(layer - 1) * WIDTH + (place + other) % WIDTH}" for other in (0, 1)]
        name = f"s{number}"
        command = f"{name} changed" if name == changed_step else name
        inputs = {f"i{at}": f"{one}.x" for at, one in enumerate(before)} if layer else {}
        steps[name] = {"job": job(command), "in": inputs, "out": ["x"]}
    return pipeline(steps, limits={"parallel": 100})


class World:
    """A decider without checks, and a store with real outputs."""

    def __init__(self, folder: Path) -> None:
        self.decider = PipelineDecider()
        self.state, self.soft = self.decider.initial(), self.decider.initial_soft()
        self.folder = folder
        self.artifacts = ArtifactStore(LocalStore(folder / "store"), TEAM)
        self.checker = OutputChecker(self.artifacts.store, read_bytes=1 << 30)
        self.jobs: list[StepJobRequested] = []
        self.count = self.requested = 0
        self.spent_s = self.longest_s = 0.0

    def feed(self, event: Event) -> list[Event]:
        self.count += 1
        envelope = Envelope(f"id-{self.count}", "/bench", START, "subject", event)
        return self.decide(Received(envelope, topic_of(event.type).value, 0, self.count))

    def decide(self, item: Input) -> list[Event]:
        began = time.perf_counter()
        decisions = list(self.decider.decide(self.state, self.soft, item, START))
        for decision in decisions:
            self.state = self.decider.evolve(self.state, decision, START)
        took = time.perf_counter() - began
        self.spent_s += took
        self.longest_s = max(self.longest_s, took)
        events = [decision.event for decision in decisions]
        found = [event for event in events if isinstance(event, StepJobRequested)]
        self.jobs += found
        self.requested += len(found)
        return events

    def run(self) -> str:
        """Run to the end; the id of the run."""
        events = self.feed(RunRequested(team=TEAM, pipeline="p"))
        run = next(event.run_id for event in events if isinstance(event, RunStarted))
        while True:
            effects = self.decider.effects(self.state, self.soft)
            for key, effect in effects.items():
                self.decide(EffectDone(key, self.checker(key, effect)))
            while self.jobs:
                self.end(self.jobs.pop())
            if self.state.runs[run].state.ended:
                return run

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


def timed(world: World, name: str, work: Callable[[], str]) -> None:
    """Print what a run cost."""
    world.spent_s = world.longest_s = 0.0
    world.requested = 0
    began = time.perf_counter()
    run = work()
    wall_s = time.perf_counter() - began
    states: dict[str, int] = {}
    for key, step in world.state.steps.items():
        if key.startswith(f"{run}/"):
            states[str(step.state)] = states.get(str(step.state), 0) + 1
    counts = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
    sys.stdout.write(
        f"{name:28}{world.requested:6} jobs  decided {world.spent_s:6.2f} s  longest "
        f"{world.longest_s * 1e3:7.1f} ms  in all {wall_s:6.2f} s  {counts}\n"
    )


def main() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder))
        world.feed(PipelineConfigureRequested(spec=layers(), user="ada"))
        timed(world, "first run", world.run)
        timed(world, "without changes", world.run)
        world.feed(PipelineConfigureRequested(spec=layers("s900"), user="ada"))
        timed(world, "step s900 changed", world.run)


if __name__ == "__main__":
    main()
