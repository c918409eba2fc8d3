"""History queries are limited in total and per user, so that they leave threads to others."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context

import pytest

from gangline_gateway import history_access
from gangline_gateway.history_access import HistoryAccess
from gangline_gateway.problems import ProblemError
from gangline_gateway.user_limits import current_user
from support.builders.gateway import DEADLINE_S, no_history


def ask_as(
    user: str, history: HistoryAccess, asked: threading.Event, released: threading.Event
) -> bool:
    def question(_: object) -> bool:
        asked.set()
        return released.wait(DEADLINE_S)

    current_user.set(user)
    return history.query(question)


@pytest.mark.parametrize(
    ("others", "status", "code"), [("ada", 429, "too-many"), ("bob", 503, "history-busy")]
)
def test_questions_beyond_the_bound_are_refused_at_once(
    monkeypatch: pytest.MonkeyPatch, others: str, status: int, code: str
) -> None:
    monkeypatch.setattr(history_access, "WAITING", 0)
    monkeypatch.setattr(history_access, "QUERIES_AT_ONCE", 1)
    monkeypatch.setattr(history_access, "QUERIES_PER_USER", 1)
    history, asked, released = HistoryAccess(no_history), threading.Event(), threading.Event()
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(copy_context().run, ask_as, "ada", history, asked, released)
        assert asked.wait(DEADLINE_S)
        with pytest.raises(ProblemError) as refused:
            copy_context().run(ask_as, others, history, asked, released)
        released.set()
        assert first.result(DEADLINE_S)
    assert (refused.value.status, refused.value.code) == (status, code)
    assert refused.value.headers["Retry-After"]
    assert copy_context().run(ask_as, "bob", history, asked, released)


class Crowd:
    """Users whose questions run until they are released, by name."""

    def __init__(self) -> None:
        self.history = HistoryAccess(no_history)
        self.running: list[str] = []
        self._released: list[str] = []
        self._changed = threading.Condition()
        self.threads = ThreadPoolExecutor(16)

    def ask(self, user: str) -> None:
        self.threads.submit(copy_context().run, self._ask, user)

    def until(self, *running: str) -> None:
        """Wait until just these run."""
        with self._changed:
            done = self._changed.wait_for(lambda: sorted(self.running) == [*running], DEADLINE_S)
            assert done, self.running

    def release(self, user: str) -> None:
        """One question of this user ends."""
        with self._changed:
            self._released.append(user)
            self._changed.notify_all()

    def _ask(self, user: str) -> None:
        current_user.set(user)
        self.history.query(lambda _: self._run(user))

    def _run(self, user: str) -> None:
        with self._changed:
            self.running.append(user)
            self._changed.notify_all()
            assert self._changed.wait_for(lambda: user in self._released, DEADLINE_S)
            self._released.remove(user)
            self.running.remove(user)
            self._changed.notify_all()


def test_one_user_leaves_a_slot_to_others_and_the_next_is_who_has_the_fewest() -> None:
    crowd = Crowd()
    with crowd.threads:
        for number in range(4):
            crowd.ask("ada")
            crowd.until(*["ada"] * min(number + 1, 3))
        crowd.ask("bob")  # while a question of ada waits
        crowd.until("ada", "ada", "ada", "bob")
        crowd.ask("cy")
        crowd.release("ada")
        crowd.until("ada", "ada", "bob", "cy")
        crowd.release("cy")
        crowd.until("ada", "ada", "ada", "bob")
        for user in ("ada", "ada", "ada", "bob"):
            crowd.release(user)
        crowd.until()
