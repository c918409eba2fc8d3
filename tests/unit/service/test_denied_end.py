"""A process that the bus refuses ends once, however many of its calls were refused."""

from __future__ import annotations

import threading

import pytest

from gangline_bus.ports import BusDenied
from gangline_service import lifecycle


def test_the_first_refusal_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(lifecycle, "_denied", threading.Lock())
    monkeypatch.setattr(threading, "excepthook", lambda failure: told.append(str(failure[1])))
    for number in range(100):
        lifecycle.end_denied(BusDenied(f"record {number}"))
    for thread in threading.enumerate():
        if thread.name == "denied":
            thread.join()
    assert told == ["record 0"]
