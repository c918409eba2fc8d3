"""A store that is away while a gang is prepared is waited for, but not forever."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from gangline_storage.errors import StoreError, StoreUnavailable
from gangline_worker.agent.decide.inputs import Prepared, PrepareFailed
from gangline_worker.agent.decide.keys import GangKey
from gangline_worker.agent.workspace import prepare
from gangline_worker.agent.workspace.prepare import Preparer

KEY: Any = GangKey("job", 1)


def preparer(monkeypatch: pytest.MonkeyPatch, *errors: Exception) -> tuple[Preparer, list[int]]:
    """One whose tries end with these errors, and then well; each try is a second of the clock."""
    made, left, tries = object.__new__(Preparer), [*errors], [0]
    made._stopping = threading.Event()
    monkeypatch.setattr(prepare, "_RETRY_S", 0.0)
    monkeypatch.setattr(prepare.time, "monotonic", lambda: float(tries[0]))

    def once(*_: object) -> None:
        tries[0] += 1
        if left:
            raise left.pop(0)

    monkeypatch.setattr(made, "_prepare", once)
    return made, tries


def test_a_store_that_answers_again_costs_no_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    made, tries = preparer(monkeypatch, *[StoreUnavailable("503")] * 20)
    assert made.prepare(KEY, KEY, KEY)[1] == Prepared(KEY)
    assert tries == [21]


@pytest.mark.parametrize(("error", "most"), [(StoreUnavailable("503"), 45), (StoreError("no"), 3)])
def test_the_attempt_fails_in_the_end(
    monkeypatch: pytest.MonkeyPatch, error: StoreError, most: int
) -> None:
    made, tries = preparer(monkeypatch, *[error] * 100)
    failed = made.prepare(KEY, KEY, KEY)[1]
    assert isinstance(failed, PrepareFailed)
    assert not failed.user_fault
    assert tries == [most]
