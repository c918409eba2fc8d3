"""Other threads look at a decider's state between two cycles."""

from __future__ import annotations

import threading

import pytest

from gangline_service.asking import Asked, NoLookError, StandsByError


def asking(asked: Asked[list[int]]) -> tuple[threading.Thread, list[object]]:
    """Somebody who asks in a thread, and what they see."""
    seen: list[object] = []

    def ask() -> None:
        try:
            seen.append(asked.look(sum, 20.0))
        except Exception as error:
            seen.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    return thread, seen


def serve(asked: Asked[list[int]], state: list[int] | None, thread: threading.Thread) -> None:
    while thread.is_alive():
        asked.answer(state)
        thread.join(0.001)


def test_a_look_is_taken_by_the_loop() -> None:
    asked: Asked[list[int]] = Asked()
    thread, seen = asking(asked)
    serve(asked, [1, 2], thread)
    assert seen == [3]


def test_a_standby_says_so() -> None:
    asked: Asked[list[int]] = Asked()
    thread, seen = asking(asked)
    serve(asked, None, thread)
    assert isinstance(seen[0], StandsByError)


def test_what_a_look_raises_is_the_askers() -> None:
    asked: Asked[list[int]] = Asked()
    thread, seen = asking(asked)
    serve(asked, ["not a number"], thread)  # type: ignore[list-item]
    assert isinstance(seen[0], TypeError)


def test_who_gave_up_is_passed_over() -> None:
    asked: Asked[list[int]] = Asked()
    looked: list[int] = []
    with pytest.raises(NoLookError):
        asked.look(looked.extend, 0.0)
    asked.answer([1])
    assert looked == []
