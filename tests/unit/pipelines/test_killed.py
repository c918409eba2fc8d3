"""A pipeline from a new snapshot to the alias that moved, with its deciders killed at any time.

After each commit of the undisturbed way the three deciders die and are started again: soft state,
and results of effects that were not decided, are lost. tests/integration/test_pipeline_kills.py
does the same to real processes.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gangline_bus.decider import DeciderLoop
from gangline_bus.decision import EffectDone
from gangline_bus.loop_settings import LoopSettings
from gangline_bus.memory import Broker
from gangline_bus.topics import TopicNames, create_topics
from gangline_pipelines.core.decide import PipelineDecider
from gangline_pipelines.core.model import Checked
from gangline_quota.core.decide import Quota
from gangline_registry.core.decide import RegistryDecider
from gangline_registry.service.executor import Executor
from support.fakes.catalogue import Catalogue
from support.harnesses.loop_story import Story, problems

LONGEST = 400
START = datetime(2026, 1, 1, tzinfo=UTC)


class AtOnce:
    """Does effects when they are asked for; their results are lost with the process."""

    def __init__(self, work: Any) -> None:
        self._work, self._done = work, list[EffectDone]()

    def submit(self, key: str, effect: object) -> None:
        self._done.append(EffectDone(key, self._work(key, effect)))

    def completed(self) -> list[EffectDone]:
        found, self._done = self._done, []
        return found

    def drop(self, keys: AbstractSet[str]) -> None:
        pass


class Processes:
    """The three deciders over one bus in memory."""

    def __init__(self) -> None:
        self.now = START
        self.broker = Broker(lambda: int(self.now.timestamp() * 1000))
        self.names, self.catalogue = TopicNames("t."), Catalogue()
        create_topics(self.broker.connect("test"), self.names)
        self.story = Story(self.broker.connect("story"), self.names)
        self.loops: list[DeciderLoop[Any]] = []
        self.start()

    def start(self) -> None:
        """Processes that know nothing but their logs."""
        registry = Executor(self.catalogue, None)
        self.loops = [
            self._loop(Quota(), None),
            self._loop(PipelineDecider(), AtOnce(lambda _key, _effect: Checked(()))),
            self._loop(RegistryDecider(), AtOnce(registry)),
        ]

    def _loop(self, decider: Any, executor: AtOnce | None) -> DeciderLoop[Any]:
        loop = DeciderLoop(
            self.broker.connect(decider.name), decider, lambda: self.now, names=self.names,
            settings=LoopSettings(tick_interval_s=0.1, batch=1), executor=executor,
        )  # fmt: skip
        loop.take_over()
        return loop

    def written(self) -> int:
        """Records of the three logs."""
        return sum(loop.next_seq for loop in self.loops)

    def run(self, kill_after: int | None = None) -> int:
        """Until the story is over; the commits that wrote something."""
        self.story.begin()
        commits = 0
        for _ in range(LONGEST):
            for number in range(len(self.loops)):
                before = self.written()
                self.loops[number].cycle(0.0)
                if self.written() == before:
                    continue
                commits += 1
                if commits == kill_after:
                    self.start()
            self.story.answer()
            self.now += timedelta(seconds=0.2)
            if self.story.over:
                break
        for _ in range(10):  # nothing more comes
            for loop in self.loops:
                loop.cycle(0.0)
            self.story.answer()
            self.now += timedelta(seconds=1)
        return commits


def test_killed_after_any_commit_no_job_is_there_twice_and_the_alias_moves_once() -> None:
    commits = Processes().run()
    assert commits > 20
    for kill_after in range(1, commits + 1):
        world = Processes()
        world.run(kill_after)
        assert problems(world.story.seen) == [], f"killed after commit {kill_after}"
        if world.catalogue.aliases:
            assert world.catalogue.aliases == {"nlp/tiny/champion": 1}


@pytest.mark.parametrize("lost", ["AliasMoved", "StepJobRequested"])
def test_what_is_there_twice_is_found(lost: str) -> None:
    world = Processes()
    world.run()
    again = next(event for event in world.story.seen if type(event).__name__ == lost)
    assert problems([*world.story.seen, again])
