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
