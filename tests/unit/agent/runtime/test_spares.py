"""A spare sandbox is made once a gang has started, and taken by an attempt that is like it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from gangline_worker.agent.decide.keys import GangKey, RankKey
from gangline_worker.agent.isolation.cold_start import Launch
from gangline_worker.agent.isolation.groups import GangLimits
from gangline_worker.agent.isolation.isolator import Isolator
from gangline_worker.agent.isolation.sandbox import Confinement, ImageRoot
from gangline_worker.agent.runtime import spares as module
from gangline_worker.agent.runtime.launcher import Launcher
from gangline_worker.agent.runtime.spares import SandboxPlan, Spares

FIRST, SECOND, SPARE = GangKey("job", 1), GangKey("job", 2), GangKey("job", -1)
PLAN = SandboxPlan(ImageRoot(Path("/layers"), ("a/files",)), GangLimits(1 << 30), None, 1 << 30)
OTHER = SandboxPlan(ImageRoot(Path("/layers"), ("b/files",)), GangLimits(1 << 30), None, 1 << 30)


class Standby:
    """A standby that is ready, or will never be."""

    made: list[Standby]
    ready, fit = True, True

    def __init__(self, launch: Launch, socket_folder: Path) -> None:
        self.launch, self.stopped = launch, False
        self.pid = 10_000 + len(self.made)
        self.made.append(self)

    def is_ready(self) -> bool:
        return self.ready

    @property
    def is_fit(self) -> bool:
        return self.fit

    def rank(self, request: object) -> object:
        return self

    def stop(self) -> None:
        self.stopped = True


class Sandboxes:
    """An isolator that notes what it is asked for; `refuses`: to move one."""

    def __init__(self) -> None:
        self.there: set[GangKey] = set()
        self.refuses, self.slow = False, False
        self.said = b"ready\n"
        self.while_moving: Callable[[], None] = lambda: None

    def begin(self, gang: GangKey, *_: object) -> Sandboxes:
        self.there.add(gang)
        return self

    def has_begun(self) -> bool:
        return not self.slow

    def first_words(self) -> bytes:
        assert not self.slow, "the agent's own thread waits"
        return self.said

    def confinement(self, gang: GangKey, *_: object) -> Confinement:
        return Confinement(sandbox=7 if gang in self.there else None)

    def move(self, spare: GangKey, gang: GangKey, *_: object) -> None:
        self.while_moving()
        if self.refuses:
            raise OSError("no")
        self.there.remove(spare)
        self.there.add(gang)

    def leave(self, gang: GangKey) -> None:
        self.there.discard(gang)


class World:
    """Spares of a node at a time of its own."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        Standby.made = []
        self.now_s = 0.0
        self.sandboxes, self.held = Sandboxes(), set[GangKey]()
        patch.setattr(module, "ImageStandby", Standby)
        patch.setattr(module, "time", SimpleNamespace(monotonic=lambda: self.now_s))
        self.patch = patch
        self.free(64 << 30)
        self.spares = Spares(
            Launcher(lambda _: None),
            cast("Isolator", self.sandboxes),
            Path("/sockets"),
            lambda _, key: self.held.add(key),
            self.held.discard,
        )

    def free(self, size: int) -> None:
        memory = SimpleNamespace(available=size)
        self.patch.setattr(module, "psutil", SimpleNamespace(virtual_memory=lambda: memory))

    def start(self, gang: GangKey, ranks: int = 2, command: str = "python") -> None:
        for rank in range(ranks):
            launch = Launch(RankKey(gang, rank), (command, "train.py"), {}, Path("/code"))
            self.spares.begin(launch, PLAN)

    def later(self, seconds: float, *live: GangKey) -> None:
        self.now_s += seconds
        for _ in range(4):
            self.spares.tick(live)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    yield World(monkeypatch)
    Standby.ready, Standby.fit = True, True


def test_the_next_attempt_gets_it_with_a_standby_for_each_rank(world: World) -> None:
    world.start(FIRST)
    world.later(1, FIRST)
    assert world.sandboxes.there == set(), "the gang's own start comes first"
    world.later(3, FIRST)
    assert world.sandboxes.there == world.held == {SPARE}
    assert {standby.launch.confinement.sandbox for standby in Standby.made} == {7}
    assert world.spares.take(SECOND, PLAN, [])
    assert (world.sandboxes.there, world.held) == ({SECOND}, set())
    launches = [Launch(RankKey(SECOND, rank), ("python", "x.py"), {}, Path()) for rank in range(3)]
    assert [world.spares.rank(launch) for launch in launches] == [*Standby.made, None]
    assert not world.spares.take(GangKey("job", 3), PLAN, [])
    world.spares.leave(SECOND)
    assert not any(standby.stopped for standby in Standby.made), "they are ranks"


def test_one_that_differs_or_is_not_ready_is_not_taken(world: World) -> None:
    world.start(FIRST)
    world.later(4, FIRST)
    assert not world.spares.take(SECOND, OTHER, [])
    assert not world.spares.take(GangKey("another", 1), PLAN, [])
    Standby.ready = False
    assert not world.spares.take(SECOND, PLAN, [])
    Standby.ready = True
    assert world.spares.take(SECOND, PLAN, [])


def test_one_whose_mounts_fail_goes(world: World) -> None:
    world.start(FIRST)
    world.later(4, FIRST)
    world.sandboxes.refuses = True
    assert not world.spares.take(SECOND, PLAN, [])
    world.later(1, FIRST)
    assert (world.sandboxes.there, world.held) == (set(), set())
    assert all(standby.stopped for standby in Standby.made)


def test_a_gang_may_end_while_its_mounts_fail(world: World) -> None:
    world.start(FIRST)
    world.later(4, FIRST)
    world.sandboxes.refuses = True
    world.sandboxes.while_moving = lambda: world.spares.leave(SECOND)
    assert not world.spares.take(SECOND, PLAN, [])
    world.later(1, FIRST)
    assert (world.sandboxes.there, world.held) == (set(), set())


def test_standbys_start_once_the_sandbox_is_ready(world: World) -> None:
    world.sandboxes.slow = True
    world.start(FIRST)
    world.later(4, FIRST)
    assert (world.sandboxes.there, Standby.made) == ({SPARE}, [])
    assert not world.spares.take(SECOND, PLAN, [])
    world.sandboxes.slow = False
    world.later(1, FIRST)
    assert len(Standby.made) == 2


def test_a_sandbox_that_cannot_be_made_goes(world: World) -> None:
    world.sandboxes.said = b"/layers: No space left on device\n"
    world.start(FIRST)
    world.later(4, FIRST)
    assert (world.sandboxes.there, world.held, Standby.made) == (set(), set(), [])


@pytest.mark.parametrize("command", ["sh", "torchrun"])
def test_none_is_made_for_other_programs(world: World, command: str) -> None:
    world.start(FIRST, command=command)
    world.later(4, FIRST)
    assert world.sandboxes.there == set()


def test_none_is_made_without_memory(world: World) -> None:
    world.free(3 << 30)
    world.start(FIRST)
    world.later(4, FIRST)
    assert world.sandboxes.there == set()


def test_an_image_that_cannot_be_warm_is_tried_once(world: World) -> None:
    Standby.fit = False
    world.start(FIRST)
    world.later(4, FIRST)
    assert (world.sandboxes.there, len(Standby.made)) == (set(), 1)
    world.spares.leave(FIRST)
    world.start(SECOND)
    world.later(4, SECOND)
    assert len(Standby.made) == 1


def test_it_goes_with_its_job_or_a_minute_after_it_left(world: World) -> None:
    world.start(FIRST)
    world.later(4, FIRST)
    world.spares.leave(FIRST)
    world.later(59)
    assert world.sandboxes.there == {SPARE}, "it may come back"
    world.later(2)
    assert world.sandboxes.there == set()
    world.start(SECOND)
    world.later(4, SECOND)
    world.spares.forget("job")
    assert (world.sandboxes.there, world.held) == (set(), set())
    assert all(standby.stopped for standby in Standby.made)
