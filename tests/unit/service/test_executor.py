"""Threads for effects are shared out fairly: no team waits for the slow work of another."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from gangline_bus.decision import Decider, EffectDone
from gangline_bus.effects import Effects
from gangline_service.executor import ThreadExecutor

WAIT_S = 30.0


class Works:
    """Effects that last until they are let end; an effect's share is its first letter."""

    def __init__(self, threads: int) -> None:
        self._changed = threading.Condition()
        self._ended: set[str] = set()
        self.begun: list[str] = []
        self.executor = ThreadExecutor(
            self._execute, lambda it: str(it)[0], threads=threads, first_pause_s=0.001
        )

    def submit(self, *names: str) -> None:
        for name in names:
            self.executor.submit(name, name)

    def until(self, done: Callable[[], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(done, WAIT_S), self.begun

    def end(self, *names: str) -> None:
        with self._changed:
            self._ended.update(names)
            self._changed.notify_all()

    def _execute(self, key: str, effect: object) -> object:
        with self._changed:
            self.begun.append(key)
            self._changed.notify_all()
            self._changed.wait_for(lambda: key in self._ended or "*" in self._ended, WAIT_S)
        if key.endswith("!"):
            raise ValueError(key)
        return effect


@pytest.fixture
def works() -> Iterator[Works]:
    made = Works(threads=3)
    yield made
    made.end("*")


def test_a_share_with_slow_work_leaves_a_thread_to_others(works: Works) -> None:
    works.submit("a1", "a2", "a3", "a4")
    works.until(lambda: len(works.begun) == 2)
    works.submit("b1")
    works.until(lambda: len(works.begun) == 3)
    assert {*works.begun[:2]} == {"a1", "a2"}
    assert works.begun[2:] == ["b1"]


def test_a_free_thread_takes_the_oldest_effect_of_the_share_with_the_fewest_threads(
    works: Works,
) -> None:
    works.submit("a1", "a2", "a3")
    works.until(lambda: len(works.begun) == 2)
    works.submit("b1")
    works.until(lambda: len(works.begun) == 3)
    works.submit("b2", "c1")
    works.end("a1")
    works.until(lambda: works.begun[3:] == ["c1"])
    works.end("c1")
    works.until(lambda: len(works.begun) == 5)
    assert sorted(works.begun[4:]) in (["a3"], ["b2"])


def test_what_was_performed_comes_back(works: Works) -> None:
    works.submit("a1")
    works.end("a1")
    found: list[EffectDone] = []

    def came() -> bool:
        found.extend(works.executor.completed())
        return bool(found)

    poll(came)
    assert found == [EffectDone("a1", "a1")]


def test_an_effect_that_fails_is_tried_again_and_others_are_done_meanwhile(works: Works) -> None:
    works.end("*")
    works.submit("b!")
    works.until(lambda: works.begun.count("b!") == 3)
    works.submit("b1", "c1")
    found: set[str] = set()

    def came() -> bool:
        found.update(done.key for done in works.executor.completed())
        return len(found) == 2

    poll(came)
    assert found == {"b1", "c1"}


def test_an_effect_that_is_wanted_no_longer_is_not_tried_again(works: Works) -> None:
    effects, state = Effects(works.executor), {"a1!": "a1!", "b!": "b!"}
    decider = cast("Decider[Any, Any]", Requests())
    effects.start(decider, dict(state), None)
    works.until(lambda: {"a1!", "b!"} <= {*works.begun})
    del state["a1!"]
    effects.start(decider, dict(state), None)
    works.end("*")
    works.until(lambda: works.begun.count("b!") > 3)
    assert works.begun.count("a1!") == 1
    effects.start(decider, {}, None)
    effects.start(decider, {"a1!": "a1!"}, None)
    works.until(lambda: works.begun.count("a1!") >= 3)


class Requests:
    """A decider of which the state is what it requests."""

    def effects(self, state: dict[str, str], _soft: None) -> dict[str, str]:
        return state


def poll(done: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(3000):
        if done():
            return
        pause.wait(0.01)
    raise AssertionError("nothing came")
